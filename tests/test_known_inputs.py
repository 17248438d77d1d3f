"""Known right values of small programs, through the whole compiler: as given, strided, and longer than a vector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import nan
from pathlib import Path

import pytest
import torch
from known_attention import ATTENTION
from known_integers import INTEGERS
from known_layouts import LAYOUTS
from known_numbers import NUMBERS
from known_row import Row, t
from lowered import executor

from anvil import targets
from anvil.api import compile_program
from anvil.frontend.capture import capture
from anvil.runtime.program import CompiledProgram
from assay.spec import registry

ROWS = [*ATTENTION, *INTEGERS, *NUMBERS, *LAYOUTS]
ROOT = Path(__file__).resolve().parents[1]
TARGET = "x86_64-avx2"
COPIES = 17  # of two numbers: two vectors and a rest


def larger(x: torch.Tensor, dynamic: Mapping[int, str]) -> torch.Tensor:
    """An example to capture with: run-time sizes of more than 1."""
    return torch.zeros([max(2, 3 * n) if dim in dynamic else n for dim, n in enumerate(x.shape)], dtype=x.dtype)


def compiled(row: Row, target: str) -> CompiledProgram:
    """The row's program."""
    names = row.sizes or [""] * len(row.inputs)
    dynamic = [{dim: name for dim, name in enumerate(letters) if name != "."} for letters in names]
    ranges = {name: (0, None) for dims in dynamic for name in dims.values()}
    examples = [larger(x, dims) for x, dims in zip(row.inputs, dynamic, strict=True)]
    program = capture(lambda *inputs: row.program(*inputs), examples, dynamic, ranges=ranges)
    return compile_program(program, target, executor=executor(target, isolated=True), guard=True)


def is_right(got: torch.Tensor, want: torch.Tensor, digits: float) -> bool:
    """Of the right type and shape; equal with the sign of zero, or within the precision the value is known to."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if digits:
        return torch.allclose(got.double(), want.double(), rtol=digits, atol=0, equal_nan=True)
    if not got.is_floating_point():
        return got.equal(want)
    same = (got == want) & (got.signbit() == want.signbit()) | got.isnan() & want.isnan()
    return bool(same.all())


def check(results: object, right: tuple[torch.Tensor, ...], digits: float) -> None:
    found = tuple(results) if isinstance(results, (tuple, list)) else (results,)
    wrong = [(got, want) for got, want in zip(found, right, strict=True) if not is_right(got, want, digits)]
    assert not wrong, "\n".join(f"got  {got} {got.dtype}\nwant {want} {want.dtype}" for got, want in wrong)


def spread_out(x: torch.Tensor) -> torch.Tensor:
    """The same numbers with every other element of memory between them unused and poisoned."""
    wide = torch.full([2 * size + 1 for size in x.shape], 0 if not x.is_floating_point() else torch.nan, dtype=x.dtype)
    view = wide[tuple(slice(1, 2 * size + 1, 2) for size in x.shape)]
    return view.copy_(x)


def repeated(x: torch.Tensor, letters: str, letter: str) -> torch.Tensor:
    dim = letters.find(letter)
    return x if dim < 0 else x.repeat([COPIES if i == dim else 1 for i in range(x.dim())])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """In the quick profile one target is enough; whether targets agree is asked op by op in ``ops/``."""
    if "target" in metafunc.fixturenames:
        quick = metafunc.config.getoption("--profile") == "quick"
        metafunc.parametrize("target", [TARGET] if quick else [target.name for target in targets.all_targets()])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number} {row.title}")
def test_the_right_value_comes_out(row: Row, target: str) -> None:
    if row.eager:
        check(row.program(*row.inputs), row.right, row.digits)
    run = compiled(row, target)
    check(run(*row.inputs), row.right, row.digits)
    check(run(*map(spread_out, row.inputs)), row.right, row.digits)
    letter, shape = row.repeat
    if letter:
        inputs = [repeated(x, letters, letter) for x, letters in zip(row.inputs, row.sizes, strict=True)]
        right = tuple(repeated(x, shape, letter) for x in row.right)
        check(run(*inputs, threads=2), right, row.digits)


def table() -> dict[int, list[str]]:
    """What the documented table says checks each line."""
    page = (ROOT / "docs" / "known-inputs.md").read_text()
    lines = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", page, re.MULTILINE)
    return {int(number): [one.strip(" `") for one in checks.split(",")] for number, checks in lines}


def test_every_line_of_the_table_is_checked_by_what_it_names() -> None:
    ops, documented = registry(ROOT / "ops"), table()
    assert sorted(documented) == list(range(1, 65))
    for number, checks in documented.items():
        assert ("program" in checks) == any(row.number == number for row in ROWS), number
        for check in checks:
            file, _, name = check.partition("::")
            if name:
                assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), check
            elif check != "program":
                assert ops[check].known, f"line {number}: ops/ has no known input of {check}"


@pytest.mark.parametrize("right", [t([1.0, 2.5]), t([1, 3], torch.int64), t([-0.0, 2.0]), t([nan, 2.0])], ids=str)
def test_a_value_that_is_off_in_type_sign_or_place_is_wrong(right: torch.Tensor) -> None:
    assert not is_right(t([1.0, 2.0]), right, 0)
    assert is_right(right, right.clone(), 0)
