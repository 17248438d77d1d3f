"""Inputs: drawn sizes straddle the tiles, layouts hold the same numbers, an example's id brings it back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from faulty_compilers import ROOT, judge_of

from assay.case import Case, Example, materialise
from assay.compare import Mismatch
from assay.explore import Stop, examples, explore, seed_of
from assay.formats import F32
from assay.spec import OpSpec, registry
from assay.strategies.layouts import LAYOUTS
from assay.strategies.shapes import around_tiles, is_suffix
from assay.strategies.values import VALUES

SPECS = registry(ROOT / "ops")


def drawn(spec: OpSpec, count: int = 100, seed: int = 0, **options) -> list[Example]:
    found: list[Example] = []
    strategy = examples(spec, options.pop("edges", {}), options.pop("limit", 1 << 16), values=("normal",), **options)
    explore(found.append, strategy, count=count, seed=seed)
    return found


def test_sizes_lie_on_both_sides_of_every_edge() -> None:
    assert around_tiles()((16,)) == (0, 1, 15, 16, 17, 31, 33)
    assert set(around_tiles(100)((8, 16))) >= {7, 8, 9, 15, 16, 17, 100}
    assert around_tiles(even=True)((16,)) == (0, 2, 14, 16, 18, 30, 34)


def test_sizes_follow_the_kernels_own_edges() -> None:
    sizes = {example.dims["N"] for example in drawn(SPECS["linear"], edges={"N": 48}, limit=1 << 30)}
    assert sizes >= {0, 1, 47, 48, 49, 95, 97}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_no_example_costs_more_than_the_limit(spec: OpSpec) -> None:
    assert all(spec.shapes.size(example.dims) <= 1 << 14 for example in drawn(spec, limit=1 << 14))


def test_the_same_seed_draws_the_same_examples() -> None:
    assert drawn(SPECS["linear"], seed=5) == drawn(SPECS["linear"], seed=5) != drawn(SPECS["linear"], seed=6)
    assert seed_of("a", 1) != seed_of("b", 1) != seed_of("a", 2)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_an_example_comes_back_from_its_id_and_code(spec: OpSpec) -> None:
    for example in drawn(spec, 10, layouts=tuple(LAYOUTS)):
        suffix = example.suffix(spec)
        assert is_suffix(suffix)
        again = Example.parse(spec, suffix, int(example.code, 16))
        assert again == example
        for one, other in zip(materialise(spec, F32, example), materialise(spec, F32, again), strict=True):
            assert torch.equal(one, other) and one.stride() == other.stride()


def test_sizes_of_another_op_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape of linear: 'M2D3' names \['D', 'M'\], expected \['K', 'M', 'N'\]"):
        Example.parse(SPECS["linear"], "M2D3", 0)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 5), (5,), (0, 5), (1, 1)])
def test_a_layout_moves_numbers_and_changes_none(layout: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    assert torch.equal(LAYOUTS[layout](x), x)


@pytest.mark.parametrize("layout", ["strided", "stepped", "offset"])
def test_what_lies_between_the_numbers_is_nan(layout: str) -> None:
    x = LAYOUTS[layout](torch.ones(3, 4))
    storage = torch.tensor(x.untyped_storage().tolist(), dtype=torch.uint8).view(torch.float32)
    assert torch.isnan(storage).any() and (storage == 1).sum() == 12


def test_layouts_are_what_their_names_say() -> None:
    x = torch.randn(2, 3, 4, 6)
    assert LAYOUTS["transposed"](x).stride()[-2:] == (1, 4)
    assert LAYOUTS["heads_inside"](x).transpose(1, 2).is_contiguous()
    assert LAYOUTS["expanded"](x).stride(0) == 0
    assert LAYOUTS["offset"](x).storage_offset() == 3
    assert LAYOUTS["stepped"](x).stride(-1) == 2


@pytest.mark.parametrize("kind", sorted(set(VALUES) - {"integers", "known"}))
def test_a_kind_fills_any_shape_from_its_seed(kind: str) -> None:
    for shape in ((2, 5), (0, 5), (3, 0), (7,)):
        one, two = (VALUES[kind].fill(np.random.default_rng(4), shape) for _ in range(2))
        assert one.shape == shape and one.dtype == np.float32
        assert np.array_equal(one, two, equal_nan=True)


@pytest.mark.parametrize(("kind", "holds"), [("nan", np.isnan), ("infinite", np.isinf), ("zeros", np.signbit)])
def test_special_kinds_hold_what_they_promise(kind: str, holds) -> None:
    assert holds(VALUES[kind].fill(np.random.default_rng(0), (8, 32))).any()


def test_exact_operands_need_no_rounding() -> None:
    spec = SPECS["linear"]
    example = Example({"M": 3, "N": 3, "K": 601}, "integers")
    x, w = materialise(spec, F32, example)
    assert float((x.abs() @ w.abs().T).max()) < 2**24


def test_an_op_without_an_exact_mode_says_so() -> None:
    with pytest.raises(ValueError, match="silu: the spec has no exact mode"):
        materialise(SPECS["silu"], F32, Example({"M": 1, "N": 1}, "integers"))


def test_a_crash_is_not_run_again_to_shrink_it() -> None:
    calls = []

    def body(example: Example) -> None:
        calls.append(example)
        if len(calls) == 5:
            raise Stop(RuntimeError("illegal instruction"))

    with pytest.raises(Stop):
        explore(body, examples(SPECS["add"], {}, 1 << 16, values=("normal",)), count=50, seed=0)
    assert len(calls) == 5


def test_a_failure_that_does_not_repeat_is_reported_as_such() -> None:
    seen = []

    def body(example: Example) -> None:
        seen.append(example)
        if len(seen) == 7:
            raise Mismatch("differs")

    with pytest.raises(Mismatch, match="not repeatable"):
        explore(body, examples(SPECS["add"], {}, 1 << 16, values=("normal",)), count=50, seed=0)


def test_a_case_id_names_every_part_that_is_not_plain() -> None:
    case = Case(SPECS["attention_full"], F32, "riscv64-rvv-vlen128", quant="w8", variant="flash")
    assert case.id == "attention_full-flash-f32-w8-riscv64_rvv_vlen128"
    assert set(case.marks) == {"attention_full", "op", "flash", "f32", "w8", "riscv64_rvv_vlen128"}


def test_the_registry_refuses_a_name_given_twice(tmp_path) -> None:
    for name in ("one", "two"):
        text = (ROOT / "ops" / "argmax.py").read_text()
        (tmp_path / f"twice_{name}.py").write_text(text)
    with pytest.raises(ValueError, match=r"twice_two\.py defines 'argmax' a second time"):
        registry(tmp_path)


def test_a_spec_digest_follows_its_bound_and_its_kinds_of_values() -> None:
    from dataclasses import replace

    from assay import bounds

    spec = SPECS["linear"]
    assert spec.digest == replace(spec, name="other").digest
    assert spec.digest != replace(spec, bound=bounds.exact).digest
    assert spec.digest != replace(spec, values=("normal",)).digest


def test_an_unknown_operand_lists_the_known_ones() -> None:
    with pytest.raises(KeyError, match=r"name='z', expected one of \['x', 'w'\]"):
        SPECS["linear"].operand("z")


def test_the_tally_counts_what_was_run() -> None:
    judge = judge_of("add", examples=30)
    judge.explore(judge.within_bound, values=("normal",))
    assert judge.tally.examples >= 30 and judge.tally.headroom == 0.0


def test_a_guided_search_climbs_towards_its_score() -> None:
    def nearest(guided: bool) -> int:
        """How near the search came to one seed among 65,536."""
        seen: list[int] = []
        strategy = examples(SPECS["add"], {}, 1 << 16, values=("normal",))
        score = (lambda: -float(seen[-1])) if guided else None
        explore(lambda example: seen.append(abs(example.seed - 12345)), strategy, count=300, seed=3, score=score)
        return min(seen)

    assert nearest(guided=True) == 0
    assert nearest(guided=False) > 0
