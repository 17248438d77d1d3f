"""README and docs say what is so: every command, path, link, exit code, bound and named object in them is real."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
import typer

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?: {4}|\t).*$", re.MULTILINE)
CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"(?<!\\)\[[^\]\n]*\]\(([^)\s]+)\)")
FOLDERS = ("src", "ops", "e2e", "golden", "tests", "ci", "docs", ".ci")
PATH = re.compile(rf"(?:^|(?<=[\s\"'(=]))((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*)")
PLACEHOLDER = re.compile(r"NAME|<|\{|\*")  # a file that the reader is told to write


def code(text: str) -> list[str]:
    """What a reader may type or open: spans and indented lines. Fenced blocks show sources and output."""
    rest = FENCE.sub("", text)
    return [*(line.strip() for line in INDENTED.findall(rest)), *CODE_SPAN.findall(rest)]


def commands(text: str, program: str) -> list[list[str]]:
    """Invocations of ``program`` in code, as words, comments and what follows a pipe left out."""
    lines = [re.split(r"\s#|\s[|>]|&&", line)[0].removeprefix(".venv/bin/") for line in code(text)]
    return [shlex.split(line) for line in lines if line.split()[:1] == [program]]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as a Markdown renderer makes them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_link_resolves(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_path_exists(page: Path) -> None:
    named = {path for text in code(page.read_text()) if not PLACEHOLDER.search(text) for path in PATH.findall(text)}
    assert sorted(path for path in named if not (ROOT / path.rstrip(".")).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for words in commands(page.read_text(), "make") for word in words[1:] if "=" not in word}
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_assay_command_and_option_exists(page: Path) -> None:
    from assay.cli import app

    known_commands = vars(typer.main.get_command(app))["commands"]
    unknown = []
    for words in commands(page.read_text(), "assay"):
        arguments = [word.strip("[]") for word in words[1:]]
        if not arguments or arguments[0].startswith("-"):
            continue
        command = known_commands.get(arguments[0])
        if command is not None and hasattr(command, "commands"):
            command = command.commands.get(arguments[1])
        known = (
            {name for param in command.params for name in (*param.opts, *param.secondary_opts)} if command else set()
        )
        options = {word.split("=")[0] for word in arguments if word.startswith("--")} - {"--help"}
        if command is None or options - known:
            unknown.append(" ".join(words))
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_dotted_name_resolves(page: Path) -> None:
    broken = []
    for name in re.findall(r"`((?:anvil|assay)(?:\.\w+)+)", page.read_text()):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            broken.append(name)
    assert broken == []


def test_readme_gives_the_two_commands_that_ci_runs() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    given = [" ".join(words) for words in commands(readme, "make")]
    for command in ("make demo", "make test"):
        assert command in given
        assert command in ci


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))
    shown = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert targets == set(re.findall(r"^  make ([\w-]+)", shown.stdout, re.MULTILINE))


# --- exit codes ------------------------------------------------------------------------------------------------------


def exceptions(module: str) -> dict[str, int]:
    """Exception classes defined in a module that carry an exit code."""
    members = vars(importlib.import_module(module)).values()
    kinds = [m for m in members if isinstance(m, type) and issubclass(m, Exception) and m.__module__ == module]
    return {kind.__name__: kind.exit_code for kind in kinds if hasattr(kind, "exit_code")}


def documented_codes() -> dict[int, str]:
    rows = re.findall(r"^\| (\d) \| (.+) \|$", (ROOT / "docs" / "exit-codes.md").read_text(), re.MULTILINE)
    return {int(number): text for number, text in rows}


ERRORS = ("anvil.errors", "assay.errors", "assay.record.writer")


@pytest.mark.parametrize("module", ERRORS)
def test_exit_code_table_equals_the_code(module: str) -> None:
    table = documented_codes()
    assert sorted(table) == list(range(len(table)))
    for name, number in exceptions(module).items():
        if number != 1:  # 1 is what the bases carry: an error of no particular kind
            assert f"`{name}`" in table[number]
    named = {name: number for number, text in table.items() for name in re.findall(r"`(\w+Error)`", text)}
    defined = {name: number for source in ERRORS for name, number in exceptions(source).items()}
    assert {name: defined.get(name) for name in named} == named


# --- bounds ----------------------------------------------------------------------------------------------------------


def bound_functions() -> list[str]:
    """Public functions of assay.bounds that are bounds: they take the setting and the golden first."""
    from assay import bounds

    functions = [f for f in vars(bounds).values() if inspect.isfunction(f) and f.__module__ == bounds.__name__]
    return [f.__name__ for f in functions if list(inspect.signature(f).parameters)[:2] == ["setting", "want"]]


@pytest.mark.parametrize("name", bound_functions())
def test_every_bound_is_documented_with_its_formula(name: str) -> None:
    """The formula is the docstring's first sentence; the page gives it under the function's name, word for word."""
    from assay import bounds

    page = (ROOT / "docs" / "correctness.md").read_text()
    section = re.search(rf"^### `{name}`\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, f"docs/correctness.md has no section on {name}"
    docstring = " ".join((inspect.getdoc(getattr(bounds, name)) or "").split())
    formula = " ".join(INDENTED.search(section.group(1)).group().split()).replace(",  ", ", ")  # type: ignore[union-attr]
    assert docstring.replace("Zero", "0", 1).startswith(formula)


def test_documented_constants_of_the_sum_bound_are_the_codes() -> None:
    from assay import bounds

    page = (ROOT / "docs" / "correctness.md").read_text()
    assert f"allows `{bounds.SUM_FACTOR:g}·√N·u·S`" in page
    assert f"`{bounds.ZERO_MEAN_FACTOR:g}·u·S` is allowed" in page
    assert np.isclose(bounds.root(4), bounds.SUM_FACTOR * 2)


# --- faults ----------------------------------------------------------------------------------------------------------

CHECKS = {"bound": "test_within_bound", "integers": "test_exact_integers", "specials": "test_special_values"}
CHECKS_IN_MODES = {
    "bound": "test_within_bound",
    "exact": "test_exact_integers",
    "known": "test_known_inputs",
    "cost": "test_cost_of_quantisation",
    "rows": "test_properties",
}


def test_fault_tables_equal_the_injected_faults() -> None:
    from faulty_quantisers import QUANTISED_FAULTS
    from test_assay_faults import FAULTS as IN_EAGER
    from test_assay_kernel_faults import FAULTS as IN_KERNELS

    numbers, rest = (ROOT / "docs" / "faults.md").read_text().split("## Wrong quantised arithmetic")
    quantised, code = rest.split("## Wrong machine code")
    row = re.compile(r"^\| ([^|]+) \| `(\w+)` \| `(\w+)`.*\|$", re.MULTILINE)
    eager = {(fault, op, CHECKS.get(check.__name__, "test_properties")) for fault, op, _, check, _ in IN_EAGER}
    kernels = {(fault, op, CHECKS.get(check.__name__, "test_properties")) for fault, _, op, check, _ in IN_KERNELS}
    assert set(row.findall(numbers)) == eager
    row_in_mode = re.compile(r"^\| ([^|]+) \| `([\w-]+)` \| `(\w+)` \|$", re.MULTILINE)
    in_modes = {(fault, mode, CHECKS_IN_MODES[check]) for fault, mode, _, check, _ in QUANTISED_FAULTS}
    assert set(row_in_mode.findall(quantised)) == in_modes
    assert set(row.findall(code)) == kernels


def test_every_test_that_the_docs_name_exists() -> None:
    missing = []
    for page in PAGES:
        for file, name in re.findall(r"`([\w/]+\.py)::(\w+)", page.read_text()):
            if not re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE):
                missing.append(f"{file}::{name}")
    assert missing == []
