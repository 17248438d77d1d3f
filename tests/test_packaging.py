"""The lock, the bootstrap, the CI script and the lint gate's own checks: each must be able to fail."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "ci"))

import self_contained  # noqa: E402
import size_report  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_requirements() -> list[str]:
    """Of the project and its tools; the extra ``llama`` is a peer to time, built only where it is asked for."""
    extras = [group for name, group in PROJECT["project"]["optional-dependencies"].items() if name != "llama"]
    groups = [PROJECT["project"]["dependencies"], *extras]
    return [*(r for group in groups for r in group), *PROJECT["dependency-groups"]["models"]]


def locked_versions() -> dict[str, str]:
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)}


# --- the lock --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("requirement", direct_requirements())
def test_direct_dependency_is_pinned_and_locked(requirement: str) -> None:
    name, _, version = requirement.partition("==")
    name = canonical(name.partition("[")[0])
    assert version, f"{requirement}: expected an exact version"
    expected = None if name == "torch" else version  # torch is installed by version, see ci/bootstrap
    assert locked_versions().get(name) == expected, "pyproject.toml and requirements.lock differ: run `make lock`"


def test_every_locked_package_has_a_hash_and_no_index_is_named() -> None:
    entries = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked_versions())
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert not re.search(r"^\s*--(index|extra-index|find-links|trusted-host)", LOCK, re.MULTILINE)


def imported_distributions() -> set[str]:
    """Distributions that the project's sources import, anywhere in a file."""
    providers = metadata.packages_distributions()
    found = set()
    for folder in ("src", "ops", "e2e", "golden", "tests", "ci"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    names = [node.module]
                found |= {canonical(d) for name in names for d in providers.get(name.partition(".")[0], ())}
    return found - {"anvil-assay"}


def test_every_imported_package_is_a_direct_dependency() -> None:
    """What is only an indirect dependency today may vanish with the next version of whatever needs it."""
    direct = {canonical(re.split(r"==|\[", requirement)[0]) for requirement in direct_requirements()}
    assert imported_distributions() - direct == set()


# --- bootstrap, with a Python that only writes down what it was asked ------------------------------------------------

FAKE_PYTHON = """#!{bash}
case "$*" in
  "--version") echo "Python 3.11.0" ;;
  "-m venv --clear "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  *sys.prefix*) dirname "$(dirname "$0")" ;;
  -c*) ;;
  *) echo "$*" >>"{log}" ;;
esac
"""
TOOLS = ("bash", "sed", "sha256sum", "cut", "cat", "id", "mkdir", "mv", "cp", "dirname", "flock", "head")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with what ci/bootstrap reads, and a bin/ with nothing but a shell's basic tools and a fake Python."""
    root = tmp_path / "clone"
    (root / "ci").mkdir(parents=True)
    shutil.copy(ROOT / "ci" / "bootstrap", root / "ci")
    for name in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, f"this test needs {tool}"
        (tools / tool).symlink_to(found)
    python = tools / "python3.11"
    python.write_text(FAKE_PYTHON.format(bash=shutil.which("bash"), log=tmp_path / "log"))
    python.chmod(0o755)
    return root


def bootstrap(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": str(root.parent / "bin"), "HOME": str(root.parent), "ANVIL_NO_APT": "1", **env}
    return subprocess.run([root / "ci" / "bootstrap"], cwd="/", env=clean, capture_output=True, text=True, check=False)


def asked(root: Path) -> list[str]:
    log = root.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_bootstrap_installs_lock_then_torch_then_the_project(clone: Path) -> None:
    done = bootstrap(clone)
    assert done.returncode == 0, done.stderr
    hashed, torch, project = asked(clone)
    assert "--require-hashes --no-deps --requirement requirements.lock" in hashed
    assert torch.endswith("install torch==2.13.0")
    assert "--no-deps --no-build-isolation --editable ." in project


def test_bootstrap_does_nothing_twice_and_everything_when_the_lock_changed(clone: Path) -> None:
    bootstrap(clone)
    assert bootstrap(clone).returncode == 0
    assert len(asked(clone)) == 3
    with (clone / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    bootstrap(clone)
    assert len(asked(clone)) == 6


def test_bootstrap_without_emulators_names_the_targets_and_goes_on(clone: Path) -> None:
    done = bootstrap(clone)
    assert done.returncode == 0
    assert "qemu-user is missing" in done.stdout
    assert "aarch64-neon and riscv64-rvv will be not_run" in done.stdout


def test_bootstrap_without_python_says_what_to_install(clone: Path) -> None:
    (clone.parent / "bin" / "python3.11").unlink()
    done = bootstrap(clone)
    assert done.returncode == 5
    assert "no Python 3.11" in done.stderr
    assert "apt-get install python3.11" in done.stderr


def test_bootstrap_that_was_interrupted_starts_again(clone: Path) -> None:
    failing = clone.parent / "bin" / "python3.11"
    working = failing.read_text()
    failing.write_text(working.replace("*) echo", "*require-hashes*) exit 1 ;;\n  *) echo"))
    assert bootstrap(clone).returncode != 0
    assert not (clone / ".venv" / ".bootstrapped").exists()
    failing.write_text(working)
    shutil.rmtree(clone / ".venv")
    assert bootstrap(clone).returncode == 0


# --- .ci/run ---------------------------------------------------------------------------------------------------------


def ci_run(tmp_path: Path, failing: str) -> tuple[int, list[str]]:
    """Exit code of .ci/run and the targets it made, with a ``make`` for which the target ``failing`` exits 3."""
    make = tmp_path / "make"
    make.write_text(f'#!/usr/bin/env bash\necho "$1" >>"{tmp_path}/made"\n[ "$1" != "{failing}" ] || exit 3\n')
    make.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", ROOT / ".ci" / "run"], env=env, capture_output=True, text=True, check=False)
    return done.returncode, (tmp_path / "made").read_text().split()


STEPS = ["demo", "large", "large-modes", "lint", "test"]


@pytest.mark.parametrize("failing", STEPS)
def test_ci_runs_every_step_and_fails_with_the_one_that_failed(tmp_path: Path, failing: str) -> None:
    code, made = ci_run(tmp_path, failing)
    assert code == 3
    assert sorted(made) == STEPS


def test_ci_passes_when_every_step_does(tmp_path: Path) -> None:
    assert ci_run(tmp_path, failing="none")[0] == 0


# --- the lint gate's own checks --------------------------------------------------------------------------------------


def repository(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=path, check=True)
    subprocess.run(["git", "add", "--all"], cwd=path, check=True)
    return path


@pytest.mark.parametrize(("lines", "code"), [(400, 0), (401, 1)])
def test_size_report_fails_past_the_limit(tmp_path: Path, lines: int, code: int) -> None:
    root = repository(tmp_path, {"src/a/long.py": "x = 1\n" * lines, "src/a/short.py": "y = 1\n"})
    assert size_report.main([], root) == code


@pytest.mark.parametrize(
    "line",
    [
        "wget https://" + "files.pythonhosted" + ".org/x.whl",
        "registry: https://registry." + "npmjs" + ".org",
        "deb http://" + "deb.debian" + ".org/debian bookworm main",
        "pip install --extra-index" + "-url http://somewhere x",
        "cd " + "/work" + "/main",
        "open('" + "/home" + "/alice/weights.gguf')",
        "PATH=" + "/root" + "/.local/bin",
    ],
)
def test_self_contained_finds_what_exists_on_one_machine_only(line: str) -> None:
    assert len(self_contained.violations({"docs/x.md": f"fine\n{line}\n"})) == 1
    assert self_contained.violations({"docs/x.md": f"fine\n{line}\n"})[0].startswith("docs/x.md:2: ")


@pytest.mark.parametrize("line", ["see docs/work/plan.md", "src/anvil/root/x.py", "$HOME/models", "a.home/b"])
def test_self_contained_lets_ordinary_text_pass(line: str) -> None:
    assert self_contained.violations({"a": line}) == []


CROSSINGS = [
    ("anvil/runtime/crossing.py", "from assay.backends import protocol", "anvil never imports assay"),
    ("assay/crossing.py", "from anvil.errors import AnvilError", "assay touches anvil only in assay.backends.anvil"),
    ("anvil/kernels/crossing.py", "from mlir import ir", "the MLIR bindings are imported only in anvil.mlir"),
    ("anvil/kernels/crossing.py", "import llvmlite.binding", "llvmlite is imported only in anvil.codegen"),
]


@pytest.mark.parametrize(("module", "statement", "contract"), CROSSINGS)
def test_import_contract_is_broken_by_a_crossing(tmp_path: Path, module: str, statement: str, contract: str) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src" / module).write_text(f"{statement}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


# --- small costs -----------------------------------------------------------------------------------------------------


def test_overheads_prints_what_the_decisions_quote() -> None:
    command = [sys.executable, str(ROOT / "ci" / "overheads.py"), "--repeats", "1"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    figures = {line[:64].strip(): float(line[64:].split()[0]) for line in printed}
    assert all(value > 0 for value in figures.values())
    kinds = {name.split(" of ")[0].split(",")[0] for name in figures}
    assert kinds >= {"call", "row in process", "link", "compilation"}
    quoting = [page for page in (ROOT / "docs" / "adr").glob("*.md") if "ci/overheads.py" in page.read_text()]
    assert len(quoting) == 3
