"""Attention variants against float64, against each other, and where softmax goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import RUNNING, TARGETS, U32, KernelBench, assert_within, bench, poison

from anvil import attention
from anvil.attention import Visibility
from anvil.errors import InputError

CAUSAL, EVERYTHING, WINDOW = Visibility(), Visibility(causal=False), Visibility(window=5)
VARIANTS = list(attention.families()["attention"])


@pytest.fixture(params=TARGETS)
def machine(request: pytest.FixtureRequest) -> KernelBench:
    return bench(request.param)


def heads_inside(array: np.ndarray) -> np.ndarray:
    """The same values with memory laid out [B, S, H, D], as projections and caches have it."""
    return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)


def inputs(batch: int, heads: int, kv_heads: int, queries: int, keys: int, size: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(queries + keys + size)
    shapes = ((batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, size))
    return tuple(heads_inside(random.standard_normal(shape).astype(np.float32)) for shape in shapes)


def run(
    machine: KernelBench, name: str, rule: Visibility, q, k, v, past, scale: float, *more, threads: int = 1
) -> np.ndarray:
    """y of a variant; a split one is merged. ``more``: the mask and the cap, if the rule has them."""
    variant = attention.get(name)
    mask, cap = more[: bool(rule.mask)], more[bool(rule.mask) :]
    inputs = (q, k, v, np.array(past, np.int64), *mask)
    y = heads_inside(poison(*q.shape[:3], v.shape[3]))
    kernel = variant.build(machine.target, rule)
    if variant.split is None:
        return machine.run(kernel, *inputs, y, scale, *cap, threads=threads)
    parts = poison(*q.shape[:3], -(-k.shape[2] // variant.split), v.shape[3] + 2)
    found = machine.run(kernel, *inputs, parts, scale, *cap, threads=threads)
    return machine.run(variant.merge(machine.target), found, y, threads=threads)


def golden(rule: Visibility, q, k, v, past, scale: float, mask=None, cap=None) -> tuple[np.ndarray, np.ndarray]:
    """Attention in float64 and its bound: |o| u + (2 scale 4 sqrt(d) u max |q||k| + (4 sqrt(N) + 8) u) sum p |v|."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    k, v = (np.repeat(array, q.shape[1] // array.shape[1], axis=1) for array in (k, v))
    positions = np.array(past)[:, None] + np.arange(q.shape[2])
    keys = np.arange(k.shape[2])
    seen = np.ones((*positions.shape, len(keys)), bool)
    if rule.causal:
        seen &= keys <= positions[..., None]
    if rule.window is not None:
        seen &= keys > positions[..., None] - rule.window
    scores = q @ k.swapaxes(2, 3) * scale
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    scores = scores if mask is None else scores + np.where(mask, 0, -np.inf) if rule.mask == "i1" else scores + mask
    scores = np.where(seen[:, None], scores, -np.inf)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = weights.sum(-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    products = (np.abs(q) @ np.abs(k).swapaxes(2, 3)).max(-1, keepdims=True, initial=0) * scale
    finite = 0 if mask is None or rule.mask == "i1" else np.abs(mask[np.isfinite(mask)]).max(initial=0)
    products = products * 4 * np.sqrt(q.shape[3]) + 6 * (cap or 0) + finite
    relative = 2 * products + 4 * np.sqrt(len(keys)) + 8
    y = weights @ v
    return y, U32 * (np.abs(y) + relative * (weights @ np.abs(v)))


SHAPES = [  # batch, heads, key heads, queries, keys, head size, past
    (1, 1, 1, 1, 1, 1, [0]),
    (2, 4, 2, 5, 9, 17, [3, 0]),
    (1, 3, 1, 33, 70, 64, [37]),
    (1, 2, 2, 17, 130, 80, [113]),
    (1, 1, 1, 1, 129, 130, [128]),
    (1, 2, 1, 16, 16, 16, [0]),
]


@pytest.mark.parametrize("rule", [CAUSAL, EVERYTHING, WINDOW], ids=["causal", "everything", "window"])
@pytest.mark.parametrize("name", VARIANTS)
def test_attention_is_within_its_bound(machine: KernelBench, name: str, rule: Visibility) -> None:
    for *shape, past in SHAPES:
        q, k, v = inputs(*shape)
        scale = shape[-1] ** -0.5
        y = run(machine, name, rule, q, k, v, past, scale, threads=2)
        assert_within(y, *golden(rule, q, k, v, past, float(np.float32(scale))))


@pytest.mark.parametrize("rule", [CAUSAL, WINDOW], ids=["causal", "window"])
def test_prefill_and_decode_agree_to_the_bit(machine: KernelBench, rule: Visibility) -> None:
    q, k, v = inputs(1, 3, 1, 35, 100, 24)
    together = run(machine, "flash", rule, q, k, v, [65], 0.2, threads=3)
    for step in (0, 16, 34):
        alone = run(machine, "decode", rule, q[:, :, step : step + 1], k, v, [65 + step], 0.2, threads=2)
        assert alone.tobytes() == np.ascontiguousarray(together[:, :, step : step + 1]).tobytes(), step


@pytest.mark.parametrize("name", VARIANTS)
def test_keys_that_are_not_visible_may_hold_anything(machine: KernelBench, name: str) -> None:
    q, k, v = inputs(1, 2, 1, 4, 90, 16)
    clean = run(machine, name, WINDOW, q, k, v, [70], 0.25)
    hidden = np.r_[0:66, 74:90]
    k[:, :, hidden], v[:, :, hidden] = np.nan, np.inf
    assert run(machine, name, WINDOW, q, k, v, [70], 0.25).tobytes() == clean.tobytes()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_later_key_changes_no_earlier_query(machine: KernelBench, name: str) -> None:
    q, k, v = inputs(1, 1, 1, 20, 20, 16)
    before = run(machine, name, CAUSAL, q, k, v, [0], 0.25)
    k[:, :, 9:], v[:, :, 9:] = np.nan, np.nan
    after = run(machine, name, CAUSAL, q, k, v, [0], 0.25)
    assert after[:, :, :9].tobytes() == before[:, :, :9].tobytes()
    assert np.isnan(after[:, :, 9:]).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_query_without_keys_gives_zeros(machine: KernelBench, name: str) -> None:
    q, k, v = inputs(1, 2, 1, 3, 0, 8)
    assert not run(machine, name, CAUSAL, q, k, v, [0], 1.0).any()
    q, k, v = inputs(1, 1, 1, 2, 4, 8)
    out_of_window = run(machine, name, Visibility(window=2), q, k, v, [100], 1.0)
    assert not out_of_window.any()


@pytest.mark.parametrize("name", VARIANTS)
def test_scores_of_minus_infinity_do_not_poison_the_sum(machine: KernelBench, name: str) -> None:
    """Rows of -Inf first, then real scores, then only -Inf: 80 keys, so that the first block is all -Inf."""
    k = np.zeros((1, 1, 80, 1), np.float32)
    k[0, 0, :76], k[0, 0, 76:, 0] = -np.inf, [1, 2, 3, 4]
    v = np.zeros((1, 1, 80, 4), np.float32)
    v[0, 0, 76:] = np.eye(4)
    q = np.ones((1, 1, 1, 4), np.float32)
    wide = np.concatenate([k, np.zeros((1, 1, 80, 3), np.float32)], -1)
    y = run(machine, name, EVERYTHING, q, wide, v, [0], 1.0)
    assert y.ravel() == pytest.approx([0.0320586, 0.0871443, 0.2368828, 0.6439143], abs=1e-6)
    assert not run(machine, name, EVERYTHING, q, wide[:, :, :76], v[:, :, :76], [0], 1.0).any()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_nan_score_spoils_its_query_only(machine: KernelBench, name: str) -> None:
    q, k, v = inputs(1, 1, 1, 3, 70, 8)
    q[0, 0, 1, 3] = np.nan
    y = run(machine, name, EVERYTHING, q, k, v, [0], 1.0)
    assert np.isnan(y[0, 0, 1]).all() and np.isfinite(y[0, 0, [0, 2]]).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_big_scores_do_not_overflow(machine: KernelBench, name: str) -> None:
    q = np.full((1, 1, 2, 128), 64, np.float32)
    v = np.stack([np.ones(128), np.full(128, 3.0)]).astype(np.float32).reshape(1, 1, 2, 128)
    y = run(machine, name, EVERYTHING, q, q, v, [0], 128**-0.5)
    assert (y == 2).all()


def test_one_visible_key_is_returned_exactly(machine: KernelBench) -> None:
    q, k, v = inputs(1, 1, 1, 1, 4, 4)
    for name in VARIANTS:
        assert run(machine, name, CAUSAL, q, k, v, [0], 0.5).tobytes() == v[:, :, :1].tobytes()


def test_query_heads_share_key_heads_in_blocks(machine: KernelBench) -> None:
    q, k, v = inputs(1, 6, 2, 3, 11, 8)
    repeated = [heads_inside(np.repeat(array, 3, axis=1)) for array in (k, v)]
    for name in VARIANTS:
        shared = run(machine, name, CAUSAL, q, k, v, [8], 0.3)
        assert shared.tobytes() == run(machine, name, CAUSAL, q, *repeated, [8], 0.3).tobytes()


@pytest.mark.parametrize("name", VARIANTS)
def test_all_targets_agree_to_the_bit(name: str) -> None:
    q, k, v = inputs(1, 2, 1, 19, 75, 37)
    answers = {target: run(bench(target), name, CAUSAL, q, k, v, [56], 0.2, threads=3) for target in RUNNING}
    first, *others = answers.values()
    assert all(other.tobytes() == first.tobytes() for other in others), list(answers)


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(InputError, match=r"name='flesh' is unknown; expected one of \['blocked', 'decode', 'flash'"):
        attention.get("flesh")
