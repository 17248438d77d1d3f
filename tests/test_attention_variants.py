"""What attention variants must agree on with each other, and the options all of them take."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_bench import RUNNING, U32, KernelBench, assert_within, bench, poison
from test_kernels_attention import (
    CAUSAL,
    EVERYTHING,
    SHAPES,
    VARIANTS,
    WINDOW,
    golden,
    heads_inside,
    inputs,
    machine,  # noqa: F401
    run,
)

from anvil import attention
from anvil.attention import Visibility
from anvil.errors import InputError

NATIVE = RUNNING[0]
BOOL, ADDITIVE = Visibility(causal=False, mask="i1"), Visibility(causal=False, mask="f32", softcap=True)
CAPPED = Visibility(softcap=True)
RULES = {"causal": CAUSAL, "everything": EVERYTHING, "window": WINDOW}


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.tobytes() == other.tobytes()


def some_mask(shape: tuple[int, ...]) -> np.ndarray:
    """About half of the keys; the first query of each head sees none."""
    mask = np.random.default_rng(len(shape)).random(shape) < 0.5
    mask[..., 0, :] = False
    return mask


@pytest.mark.parametrize("name", VARIANTS)
def test_soft_cap_bool_mask_and_bias_are_within_the_bound(machine: KernelBench, name: str) -> None:  # noqa: F811
    for *shape, past in SHAPES:
        q, k, v = inputs(*shape)
        mask = some_mask((*q.shape[:3], k.shape[2]))
        scale = float(np.float32(shape[-1] ** -0.5))
        capped = run(machine, name, CAPPED, q, k, v, past, scale, 2.0, threads=2)
        assert_within(capped, *golden(CAPPED, q, k, v, past, scale, cap=2.0))
        masked = run(machine, name, BOOL, q, k, v, past, scale, mask.view(np.int8), threads=2)
        assert_within(masked, *golden(BOOL, q, k, v, past, scale, mask=mask))
        assert not masked[:, :, 0].any(), "a query whose mask hides every key gives zeros"
        bias = np.where(mask, np.sin(np.arange(mask.size)).reshape(mask.shape), -np.inf).astype(np.float32)
        added = run(machine, name, ADDITIVE, q, k, v, past, scale, bias, 2.0, threads=2)
        assert_within(added, *golden(ADDITIVE, q, k, v, past, scale, mask=bias, cap=2.0))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_cap_comes_before_the_mask(machine: KernelBench, name: str) -> None:  # noqa: F811
    """Scores 40, 10, 30 under a cap of 20, the second key hidden: it would get weight if -Inf were capped to -20."""
    q = np.zeros((1, 1, 1, 4), np.float32)
    q[..., 0] = 1
    k, v = np.zeros((1, 1, 3, 4), np.float32), np.zeros((1, 1, 3, 4), np.float32)
    k[0, 0, :, 0], v[0, 0, :, :3] = [40, 10, 30], np.eye(3)
    mask = np.array([0, -np.inf, 0], np.float32).reshape(1, 1, 1, 3)
    y = run(machine, name, ADDITIVE, q, k, v, [0], 1.0, mask, 20.0)
    assert y.ravel() == pytest.approx([0.7645, 0, 0.2355, 0], abs=5e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_keys_that_a_mask_hides_may_hold_anything(machine: KernelBench, name: str) -> None:  # noqa: F811
    q, k, v = inputs(1, 2, 1, 4, 70, 16)
    mask = np.zeros((1, 2, 4, 70), bool)
    mask[..., 10:15] = True
    clean = run(machine, name, BOOL, q, k, v, [0], 0.25, mask.view(np.int8))
    k[:, :, 15:], v[:, :, :10] = np.nan, np.nan
    k[:, :, :10], v[:, :, 15:] = np.inf, np.inf
    assert same(run(machine, name, BOOL, q, k, v, [0], 0.25, mask.view(np.int8)), clean)


@pytest.mark.parametrize("name", VARIANTS)
def test_values_may_be_wider_or_narrower_than_keys(machine: KernelBench, name: str) -> None:  # noqa: F811
    q, k, _ = inputs(1, 2, 1, 5, 70, 24)
    for width in (1, 16, 37):
        v = inputs(1, 2, 1, 5, 70, width)[2]
        y = run(machine, name, CAUSAL, q, k, v, [65], 0.25, threads=2)
        assert y.shape == (1, 2, 5, width)
        assert_within(y, *golden(CAUSAL, q, k, v, [65], 0.25))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_blocked_is_naive_to_the_bit(machine: KernelBench, rule: Visibility) -> None:  # noqa: F811
    for queries in (1, 4, 6):
        q, k, v = inputs(1, 4, 2, queries, 70, 37)
        one, other = (run(machine, name, rule, q, k, v, [60], 0.2) for name in ("naive", "blocked"))
        assert same(one, other)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_window_of_the_whole_length_is_no_window(machine: KernelBench, name: str) -> None:  # noqa: F811
    q, k, v = inputs(1, 2, 1, 5, 70, 16)
    windowed = run(machine, name, Visibility(window=70), q, k, v, [65], 0.25)
    assert same(windowed, run(machine, name, CAUSAL, q, k, v, [65], 0.25))


class TestSplit:
    """Keys in parts of 256, merged."""

    def test_one_part_is_decode_to_the_bit(self, machine: KernelBench) -> None:  # noqa: F811
        q, k, v = inputs(2, 4, 2, 3, 256, 33)
        one, other = (run(machine, name, CAUSAL, q, k, v, [253, 100], 0.2) for name in ("decode", "split_kv"))
        assert same(one, other)

    @pytest.mark.parametrize("keys", [257, 512, 600])
    def test_several_parts_are_within_the_bound_on_any_number_of_threads(self, keys: int) -> None:
        q, k, v = inputs(1, 4, 2, 2, keys, 17)
        here = bench(NATIVE)
        one, *others = (run(here, "split_kv", CAUSAL, q, k, v, [keys - 2], 0.2, threads=n) for n in (1, 2, 3, 7))
        assert_within(one, *golden(CAUSAL, q, k, v, [keys - 2], float(np.float32(0.2))))
        assert all(same(one, other) for other in others)

    def test_parts_without_a_visible_key_count_nothing(self, machine: KernelBench) -> None:  # noqa: F811
        """Two of three parts are hidden by the window, then all of them; what they hold is NaN."""
        q, k, v = inputs(1, 2, 1, 1, 700, 16)
        rule = Visibility(window=8)
        clean = run(machine, "decode", rule, q, k, v, [690], 0.25)
        k[:, :, :600], v[:, :, :600] = np.nan, np.nan
        assert_within(run(machine, "split_kv", rule, q, k, v, [690], 0.25), clean, 4 * U32 * np.abs(clean) + 1e-7)
        assert not run(machine, "split_kv", rule, q, k, v, [9000], 0.25).any()


def ring_of(contiguous: np.ndarray, past: list[int], capacity: int, tokens: int) -> np.ndarray:
    """A ring that holds the last positions of each sequence, the rest NaN."""
    ring = np.full((*contiguous.shape[:2], capacity, contiguous.shape[3]), np.nan, np.float32)
    for row, used in enumerate(past):
        for position in range(max(0, used + tokens - capacity), used + tokens):
            ring[row, :, position % capacity] = contiguous[row, :, position]
    return ring


@pytest.mark.parametrize("past", [[0, 3], [6, 7], [60, 61], [70, 8]])
def test_a_ring_gives_what_the_whole_cache_gives(machine: KernelBench, past: list[int]) -> None:  # noqa: F811
    """Before it wraps, while it wraps, and after several turns."""
    tokens, window = 3, 8
    q, k, v = inputs(2, 4, 2, tokens, 80, 17)
    rule = Visibility(window=window)
    want = run(machine, "decode", rule, q, k, v, past, 0.3)
    for capacity in (window + tokens - 1, 16, 100):
        rings = (ring_of(item, past, capacity, tokens) for item in (k, v))
        assert same(run(machine, "sliding_window", rule, q, *rings, past, 0.3, threads=2), want)


def test_a_ring_without_a_window_is_refused() -> None:
    with pytest.raises(InputError, match=r"ring cache.*expected causal with a window"):
        attention.get("sliding_window").build(bench(NATIVE).target, CAUSAL)


def run_paged(here: KernelBench, q, k, v, past, table, rule: Visibility = CAUSAL) -> np.ndarray:
    kernel = attention.get("paged").build(here.target, rule)
    return here.run(kernel, q, k, v, np.array(past, np.int64), table, heads_inside(poison(*q.shape)), 0.3, threads=2)


@pytest.mark.parametrize("page", [1, 16, 24])
def test_pages_in_any_order_give_what_the_whole_cache_gives(machine: KernelBench, page: int) -> None:  # noqa: F811
    q, k, v = inputs(2, 4, 2, 3, 80, 17)
    past = [77, 20]
    count = -(-80 // page)
    table = np.random.default_rng(page).permutation(2 * count + 1)[: 2 * count].reshape(2, count)
    pages = [np.full((2 * count + 1, 2, page, 17), np.nan, np.float32) for _ in "kv"]
    for whole, paged in zip((k, v), pages, strict=True):
        for row, used in enumerate(past):
            for position in range(used + 3):
                paged[table[row, position // page], :, position % page] = whole[row, :, position]
    table[1, 23 // page + 1 :] = 2**40  # entries that no query's keys lie in are not looked up
    for rule in (CAUSAL, WINDOW):
        want = run(machine, "decode", rule, q, k, v, past, 0.3)
        assert same(run_paged(machine, q, *pages, past, table, rule), want)


def test_latents_are_keys_and_values_at_once(machine: KernelBench) -> None:  # noqa: F811
    """Five heads over one row per token; the values are its first 20 of 28 components."""
    q, latents, _ = inputs(2, 5, 1, 3, 70, 28)
    kernel = attention.get("mla").build(machine.target, CAUSAL)
    y = heads_inside(poison(2, 5, 3, 20))
    values = latents[..., :20]
    got = machine.run(kernel, q, latents, values, np.array([67, 4]), y, 0.25, threads=2)
    assert_within(got, *golden(CAUSAL, q, latents, values, [67, 4], 0.25))
