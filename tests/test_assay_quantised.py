"""Specs in quantisation modes: a compiler without a fault passes, one with a fault is caught; the matrix as data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from faulty_quantisers import QUANTISED_FAULTS, Linear, judge_of, right

from anvil import quant
from assay import matrix
from assay.compare import Mismatch
from assay.judge import Judge
from assay.ledger import LedgerRow
from assay.matrix import Cell, Rule
from assay.quantised import awkward, integer_weights
from assay.reference.quantise import MODES
from assay.spec import registry

ROOT = Path(__file__).parents[1]
MATRIX = matrix.load(ROOT / "ops" / "matrix.toml")


def rows(judge: Judge) -> None:
    (relation,) = [p for p in judge.spec.properties if p.name.startswith("prefix")]
    judge.explore(lambda example: relation.check(judge, example), values=("normal",))


CHECKS: dict[str, Callable[[Judge], None]] = {
    "bound": lambda judge: judge.explore(judge.within_bound, values=judge.spec.values),
    "exact": lambda judge: judge.explore(judge.exact, values=("integers",)),
    "cost": lambda judge: judge.cost(),
    "rows": rows,
    "known": lambda judge: judge.known(("contiguous",)),
}


@pytest.mark.parametrize(("fault", "mode", "function", "check", "words"), QUANTISED_FAULTS)
def test_fault_is_caught(fault: str, mode: str, function: Linear, check: str, words: str) -> None:
    judge = judge_of(mode, function)
    with pytest.raises(Mismatch) as caught:
        CHECKS[check](judge)
    assert words in str(caught.value), fault


@pytest.mark.parametrize("mode", MODES)
def test_a_compiler_without_a_fault_passes(mode: str) -> None:
    for name in ("bound", "exact", "cost", "known"):
        CHECKS[name](judge_of(mode, right(mode), examples=12))


@pytest.mark.parametrize("mode", MODES)
def test_two_quantisers_written_apart_agree_to_the_bit(mode: str) -> None:
    """The compiler's and the judge's, on weights that are hard to quantise."""
    own = quant.get(mode)
    for inputs in (1, 16, 40, 300):
        w = awkward(np.random.default_rng(inputs), (23, inputs), {})
        want = own.dequantise(own.quantise(torch.from_numpy(w.copy()))).numpy()
        assert np.array_equal(MODES[mode].weights(w), want), inputs


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inputs", [0, 1, 2, 33, 300])
def test_integer_weights_are_held_exactly(mode: str, inputs: int) -> None:
    w = integer_weights(np.random.default_rng(0), (9, inputs), mode)
    assert np.array_equal(MODES[mode].weights(w.astype(np.float32)), w)


def test_every_mode_of_the_compiler_has_a_golden() -> None:
    assert {*MODES, "fp32"} == set(quant.modes())


def test_rules_need_all_their_patterns_to_fit() -> None:
    cell = Cell("op", "linear", "f32", "w4-g32", "", "x86_64-avx2")
    assert Rule({"name": ("lin*",), "quant": ("q*", "w4-*")}).fits(cell)
    assert not Rule({"name": ("lin*",), "quant": ("q*",)}).fits(cell)
    assert not Rule({"name": ("!linear", "!mlp")}).fits(cell)
    assert Rule({"name": ("!embedding",)}).fits(cell)


@pytest.mark.parametrize("text", ["[[slow]]\nnames=['x']", "[[quick]]\nname=['x']"])
def test_a_matrix_that_is_not_understood_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "matrix.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="unknown"):
        matrix.load(path)


def test_every_cell_has_a_row_and_a_reason() -> None:
    specs = registry(ROOT / "ops")
    modes = {"quant": tuple(quant.modes()), "attention": ("flash",)}
    every = list(matrix.cells(specs, {}, modes, ["a", "b"]))
    ok = LedgerRow("op", "linear", "a", "f32", "w8", "", "ok", 9, 0.1, "here", "")
    found = matrix.complete([ok], every, MATRIX, {}, {name: spec.quants for name, spec in specs.items()})
    assert len(found) == len(every) == len(set(every))
    assert all(row.reason for row in found if row.status != "ok")
    assert [row for row in found if row.status == "ok"] == [ok]
    by_key = {(row.name, row.quant, row.target): row for row in found}
    assert by_key["add", "w8", "a"].reason == "no weights to quantise"
    assert not by_key["embedding", "w8a8", "a"].meaningful
    assert by_key["linear", "w8", "b"].reason == "not in these records"
    assert "meaningful cells ok" in matrix.summary(found)


def test_the_matrix_is_counted_along_every_axis(tmp_path: Path) -> None:
    def row(target: str, status, reason: str = "", **fields) -> LedgerRow:
        return LedgerRow("op", "linear", target, "f32", "w8", "", status, 9, 0.1, "here", reason, **fields)

    (tmp_path / "matrix.toml").write_text("at_least = 0.5\n[[where_it_runs]]\ntargets = ['*-zvfh']\nreason = 'gated'\n")
    rules = matrix.load(tmp_path / "matrix.toml")
    recorded = [row("a", "ok"), row("b", "failed", "wrong"), row("c-zvfh", "not_run", "old"), row("d-zvfh", "ok")]
    found = matrix.complete(recorded, [], rules, {}, {})
    gated = next(each for each in found if each.target == "c-zvfh")
    assert not gated.meaningful and gated.reason == "gated: old"
    assert next(each for each in found if each.target == "d-zvfh").meaningful
    (mode,) = matrix.counts(found, "quant")
    assert (mode.value, mode.total, mode.ok, mode.failed, mode.meaningless) == ("w8", 3, 2, 1, 1)
    assert mode.share == 2 / 3 and rules.at_least == 0.5
    assert [each.value for each in matrix.counts(found, "target")] == ["a", "b", "c-zvfh", "d-zvfh"]
    assert matrix.reasons(found) == [(1, "failed", "wrong")]


def test_what_a_golden_has_no_mode_for_is_ruled_out_by_the_matrix() -> None:
    """No spec is silently without a mode: either it has a golden for it, or the file says why it needs none."""
    for spec in registry(ROOT / "ops").values():
        for mode in quant.modes():
            cell = Cell(spec.kind, spec.name, "f32", mode, "", "x86_64-avx2")
            assert (mode in spec.quants) != bool(MATRIX.why_not(cell)), (spec.name, mode)


def test_the_quick_profile_leaves_out_what_is_thorough() -> None:
    cells = [Cell("layer", "decoder_layer_qwen2", "f32", "fp32", "", t) for t in ("x86_64-avx2", "aarch64-neon")]
    assert [MATRIX.wanted(cell, thorough=False) for cell in cells] == [True, False]
    assert all(MATRIX.wanted(cell, thorough=True) for cell in cells)


def test_the_quick_profile_touches_every_mode_and_every_name() -> None:
    names = {spec.name for spec in registry(ROOT / "ops").values() if len(spec.quants) > 1}
    cells = [Cell("op", n, "f32", q, "", "x86_64-avx2") for n in names for q in MODES]
    quick = [cell for cell in cells if MATRIX.wanted(cell, thorough=False)]
    assert {cell.name for cell in quick} == names
    assert {cell.quant for cell in quick} == set(MODES)
