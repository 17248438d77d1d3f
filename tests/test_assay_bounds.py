"""Bounds and goldens, checked from outside: against PyTorch in float64, against one another, against known values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from faulty_compilers import ROOT, judge_of

from assay import compare
from assay.analysis import Analysis, Bounded
from assay.bounds import Setting
from assay.case import Example, arrays, known_examples, materialise
from assay.formats import F32, F64
from assay.spec import OpSpec, registry

SPECS = registry(ROOT / "ops")
SETTING = Setting(F32, F32)
DIMS = {"B": 2, "L": 5, "S": 5, "M": 4, "N": 9, "K": 2, "G": 2, "D": 8, "T": 7, "P": 3, "H": 2, "V": 11, "X": 3}


def example(spec: OpSpec, seed: int = 3, values: str = "normal") -> Example:
    static = spec.shapes.static[0] if spec.shapes.static else {}
    dims = {**{name: DIMS[name] for name in spec.shapes.free}, **static}
    return Example(spec.shapes.complete(dims), values, seed=seed)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_golden_is_what_pytorch_computes_in_float64(spec: OpSpec) -> None:
    inputs = [t.double() if t.is_floating_point() else t for t in materialise(spec, F32, example(spec))]
    theirs = arrays([spec.module()(*inputs)])[0]
    ours = spec.golden(*arrays(inputs))
    assert ours.shape == theirs.shape
    assert np.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_bound_is_finite_and_a_fault_just_above_it_is_seen(spec: OpSpec) -> None:
    operands = arrays(materialise(spec, F32, example(spec)))
    want, out = spec.golden(*operands), spec.out or F32
    bound = spec.bound(SETTING, want, *operands)
    assert bound.shape == want.shape
    assert (np.isfinite(bound) & (bound >= 0)).all()
    got = out.round(want).copy()
    assert compare.compare(got, want, bound, out).passed
    step = np.maximum(1.01 * bound, out.ulp(want) if out.is_float else 1)
    got.reshape(-1)[-1] = (want + step).reshape(-1)[-1]
    verdict = compare.compare(got, want, bound, out)
    assert verdict.wrong.sum() == 1 and verdict.wrong.reshape(-1)[-1]


@pytest.mark.parametrize("spec", [s for s in SPECS.values() if s.kind == "op"], ids=lambda s: s.name)
def test_bound_is_tight_enough_for_a_wrong_constant(spec: OpSpec) -> None:
    """A relative error of 1e-4, as of a wrong eps, is outside on most elements of every op. The scores of latent
    attention are sums over sums of products; there it takes ten times that."""
    operands = arrays(materialise(spec, F32, example(spec)))
    want = spec.golden(*operands)
    if spec.out is not None:
        pytest.skip("an integer result")
    error = 1e-3 if spec.name == "attention_latent" else 1e-4
    got = F32.round(want * (1 + error))
    verdict = compare.compare(got, want, spec.bound(SETTING, want, *operands), F32)
    assert verdict.wrong[want != 0].mean() > 0.5


KNOWN = [spec for spec in SPECS.values() if spec.known]


@pytest.mark.parametrize("spec", KNOWN, ids=lambda s: s.name)
def test_golden_gives_the_known_values(spec: OpSpec) -> None:
    for found in known_examples(spec, "contiguous"):
        operands = arrays(materialise(spec, F32, found))
        known = spec.known[found.seed]
        right = known.right
        if known.repeat:
            axis = spec.result.split().index(known.repeat)
            right = np.repeat(right, found.dims[known.repeat] // right.shape[axis], axis)
        with np.errstate(all="ignore"):
            assert np.allclose(spec.golden(*operands), right, rtol=known.digits, atol=0, equal_nan=True), known.title


@pytest.mark.parametrize("name", ["attention_block", "mlp", "decoder_layer"])
def test_running_analysis_covers_float32_and_not_ten_times_worse(name: str) -> None:
    """The carried bound holds for eager float32, and the aggregate check fails when noise is ten times eager's."""
    judge = judge_of(name, examples=30)
    judge.explore(judge.within_bound, values=judge.spec.values)
    assert judge.tally.headroom < 1


def test_inherited_error_grows_through_every_step() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 3, 8)), rng.standard_normal((8, 8))
    run = Analysis.inside(SETTING)
    clean, dirty = run.exact(x), Bounded(x, np.full(x.shape, 1e-3))
    one = np.ones(8)
    steps = {
        "linear": lambda b: run.linear(b, w),
        "rms_norm": lambda b: run.rms_norm(b, one, eps=1e-5),
        "add": lambda b: run.add(b, b),
        "swiglu": lambda b: run.swiglu(b, b),
        "attention": lambda b: run.attention(*(b.moved(lambda a: a[:, None]),) * 3, np.zeros(1, int)),
    }
    for name, step in steps.items():
        assert (step(dirty).error > 100 * step(clean).error).all(), name


@pytest.mark.parametrize("step", ["rms_norm", "attention", "swiglu"])
def test_inherited_error_covers_a_real_perturbation(step: str) -> None:
    """Moving the inputs by up to their stated errors moves the golden by no more than the inherited bound."""
    rng = np.random.default_rng(5)
    run = Analysis.inside(Setting(F64, F64))
    x, size = rng.standard_normal((2, 1, 6, 8)), 1e-3
    functions = {
        "rms_norm": lambda b: run.rms_norm(b, np.linspace(0.5, 2, 8), eps=1e-5),
        "swiglu": lambda b: run.swiglu(b, b),
        "attention": lambda b: run.attention(b, b, b, np.zeros(2, int)),
    }
    stated = functions[step](Bounded(x, np.full(x.shape, size)))
    for _ in range(50):
        moved = functions[step](run.exact(x + rng.choice([-size, size], x.shape)))
        assert (np.abs(moved.value - stated.value) <= stated.error).all()


def test_rounding_of_a_golden_is_torchs() -> None:
    x = np.random.default_rng(2).standard_normal(100)
    assert (F32.round(x) == torch.from_numpy(x).float().double().numpy()).all()
