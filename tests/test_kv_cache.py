"""The key/value cache in narrower types: what is stored, what is read back, and how much memory it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_bench import TARGETS, U32, KernelBench, assert_within, bench, poison
from test_kernels_attention import CAUSAL, golden, heads_inside, inputs
from test_kernels_attention import machine as machine
from tiny_models import (
    assert_same_function,
    capture_logits,
    new_caches,
    one_thread,  # noqa: F401
    run,
    run_chunks,
    tiny_llama,
    token_ids,
)

import anvil
from anvil import attention, kernels
from anvil.attention import Visibility
from anvil.errors import InputError
from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import fuse
from anvil.graph import ops

TARGET = "x86_64-avx2"
HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
PAST = torch.tensor([3, 0])


def new_rows(size: int = 37) -> torch.Tensor:
    """[2, 3, 5, size] with a row of zeros, exact ties of the int8 rounding, an infinity and a NaN."""
    x = torch.randn(2, 3, 5, size, generator=torch.Generator().manual_seed(5))
    x[0, 0, 0] = 0
    x[0, 0, 1] = torch.arange(size) + 0.5
    x[0, 0, 1, 0] = 127.0  # scale 1: 0.5, 1.5, 2.5 ... are ties
    x[0, 0, 2, 3], x[0, 0, 3, size - 1], x[1, 2, 4] = torch.inf, torch.nan, 1e-42
    return x


def written(x: torch.Tensor) -> torch.Tensor:
    """bool [2, 8]: slots that appending ``x`` at ``PAST`` fills."""
    slot = torch.arange(8)
    return (slot >= PAST[:, None]) & (slot < PAST[:, None] + x.shape[2])


@pytest.mark.parametrize("size", [1, 16, 37])
def test_int8_codes_and_scales_are_those_of_the_emulation_to_the_bit(machine: KernelBench, size: int) -> None:
    x = new_rows(max(size, 4))[..., :size]
    codes, scales = torch.full((2, 3, 8, size), 77, dtype=torch.int8), torch.full((2, 3, 8), 7.0)
    kernel = kernels.get("kv_append").build(machine.target, "i8")
    arguments = (x.contiguous().numpy(), PAST.numpy(), codes.numpy(), scales.numpy())
    found = machine.run(kernel, *arguments, threads=2)  # the last output: the scales
    reordered = machine.run_all(kernel, *arguments, threads=2)
    ops.kv_append_quantised(codes, scales, x, PAST)
    np.testing.assert_array_equal(found, scales.numpy())
    finite = ~torch.isnan(scales)
    np.testing.assert_array_equal(reordered["cache"][finite], codes[finite])
    assert not written(x).all() and (codes[~written(x)[:, None].expand(2, 3, 8)] == 77).all()


def test_int8_rounds_half_to_even_and_zero_rows_have_scale_zero() -> None:
    codes, scales = torch.zeros(1, 1, 2, 5, dtype=torch.int8), torch.zeros(1, 1, 2)
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -126.5], [0, 0, 0, 0, 0]]).reshape(1, 1, 2, 5)
    ops.kv_append_quantised(codes, scales, x, torch.tensor([0]))
    assert codes.tolist() == [[[[127, 0, 2, 2, -126], [0, 0, 0, 0, 0]]]]
    assert scales.tolist() == [[[1.0, 0.0]]]


@pytest.mark.parametrize("name", HALVES)
def test_halves_are_rounded_to_nearest_even(machine: KernelBench, name: str) -> None:
    x = new_rows()
    cache = torch.zeros(2, 3, 8, 37, dtype=HALVES[name])
    kernel = kernels.get("kv_append").build(machine.target, name)
    got = machine.run(kernel, x.numpy(), PAST.numpy(), cache.view(torch.int16).numpy())
    ops.kv_append(cache, x.to(HALVES[name]), PAST)
    mine = torch.from_numpy(got.copy()).view(HALVES[name])
    assert torch.equal(mine.isnan(), cache.isnan())
    assert torch.equal(mine.nan_to_num(0.0), cache.nan_to_num(0.0))


# How a row is read is one function for all variants: decode is tried on every target, the others on one.
READERS = [("decode", target) for target in TARGETS]
READERS += [(name, TARGET) for name in ("naive", "blocked", "flash", "split_kv")]


@pytest.mark.parametrize(("variant", "target"), READERS)
@pytest.mark.parametrize("storage", ["f16", "bf16", "i8"])
def test_attention_over_a_narrow_cache_is_within_the_bound_of_what_it_holds(storage, variant, target) -> None:
    """fp64 on the stored numbers; multiplying by the scale adds less than one unit to each product's bound."""
    machine = bench(target)
    q, k, v = inputs(2, 4, 2, 3, 70, 37)
    stored, exact = {}, {}
    for name, x in (("k", torch.tensor(k)), ("v", torch.tensor(v))):
        if storage == "i8":
            codes, scales = torch.zeros(x.shape, dtype=torch.int8), torch.zeros(x.shape[:3])
            ops.kv_append_quantised(codes, scales, x, torch.tensor([0, 0]))
            stored[name] = (codes.numpy(), scales.numpy())
            exact[name] = (codes.double() * scales[..., None].double()).numpy()
        else:
            stored[name] = (x.to(HALVES[storage]).view(torch.int16).numpy(),)
            exact[name] = x.to(HALVES[storage]).double().numpy()
    rule = Visibility(storage=storage)
    chosen = attention.get(variant)
    y, past = heads_inside(poison(*q.shape)), np.array([67, 20])
    operands = (q, *stored["k"], *stored["v"], past)
    if chosen.split is None:
        got = machine.run(chosen.build(machine.target, rule), *operands, y, 0.25, threads=2)
    else:
        parts = machine.run(chosen.build(machine.target, rule), *operands, poison(2, 4, 3, 1, 39), 0.25)
        got = machine.run(chosen.merge(machine.target), parts, y)
    want, allowed = golden(CAUSAL, q, exact["k"], exact["v"], past, 0.25)
    assert_within(got, want, allowed + U32 * np.abs(want))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_the_incremental_graph_stores_what_it_is_asked_to(dtype: torch.dtype) -> None:
    """In PyTorch, chunk by chunk: near the full-precision model, and not equal to it."""
    whole = fuse(capture_logits(tiny_llama()))
    program, ids = incrementalise(whole, dtype), token_ids(2, 7)
    caches = tuple(torch.zeros(spec.shape(2, 16), dtype=spec.dtype) for spec in program.caches)
    assert {cache.dtype for cache in caches if cache.ndim == 4} == {dtype}
    got = torch.cat([run(program, ids[:, s : s + 1], torch.full((2,), s), caches=caches) for s in range(7)], dim=1)
    want = run(whole, ids)
    error = ((got - want).abs().max() / want.abs().max()).item()
    assert 1e-5 < error < 0.05
    assert new_caches(incrementalise(whole), 2, 16)[0].dtype == torch.float32
    assert_same_function(run_chunks(incrementalise(whole), ids, [7]), want)


@pytest.fixture(scope="module")
def compiled() -> dict[str, anvil.api.CompiledModel]:
    model = tiny_llama(num_hidden_layers=1)
    return {kv: anvil.compile(model, TARGET, kv=kv, context=24) for kv in ("fp32", "fp16", "bf16", "int8")}


def test_compiled_models_decode_what_their_own_graph_says(compiled) -> None:
    """Greedy tokens of each cache type equal those of the incremental graph in PyTorch with that cache."""
    whole, ids = fuse(capture_logits(tiny_llama(num_hidden_layers=1))), token_ids(1, 6)
    for kv, model in compiled.items():
        program = incrementalise(whole, anvil.api.KV_TYPES[kv])
        caches = tuple(torch.zeros(spec.shape(1, 24), dtype=spec.dtype) for spec in program.caches)
        token, past, want = ids, 0, []
        for _ in range(8):
            logits = run(program, token, torch.tensor([past]), caches=caches)
            past += token.shape[1]
            token = logits[:, -1:].argmax(-1)
            want.append(int(token))
        assert model.generate(ids[0].tolist(), 8).ids == want, kv


def test_caches_take_the_memory_of_their_type(compiled) -> None:
    """One layer of two heads of 8 for 24 tokens, keys and values; int8 has 4 more bytes per token and head."""
    rows = 2 * 2 * 24
    want = {"fp32": rows * 32, "fp16": rows * 16, "bf16": rows * 16, "int8": rows * (8 + 4)}
    assert {kv: model.facts()["kv_bytes"] for kv, model in compiled.items()} == want
    assert compiled["int8"].facts()["kv"] == "int8"


def test_prefill_in_one_and_token_by_token_agree_to_the_bit(compiled) -> None:
    ids = token_ids(1, 9)[0].tolist()
    for model in compiled.values():
        model.reset()
        model.prefill(ids)
        whole = model.decoder.logits.copy()
        model.reset()
        model.prefill(ids[:1])
        for token in ids[1:]:
            model.decode(token)
        assert model.decoder.logits.tobytes() == whole.tobytes()


def test_an_unknown_cache_type_is_refused() -> None:
    with pytest.raises(InputError, match=r"kv='int4' is unknown; expected one of \['fp32', 'fp16', 'bf16', 'int8'\]"):
        anvil.compile(tiny_llama(), TARGET, kv="int4")


def ring_append(machine: KernelBench, ring: np.ndarray, new: np.ndarray, past: list[int]) -> np.ndarray:
    kernel = kernels.get("kv_append").build(machine.target, "f32", "ring")
    return machine.run(kernel, new, np.array(past, np.int64), ring).copy()


def test_a_ring_of_eight_fills_and_then_drops_the_oldest(machine: KernelBench) -> None:
    """Six tokens 0 .. 5 at once, then 6, 7, 8, 9 one by one: in order of position 0-6, 0-7, 1-8, 2-9."""
    ring = np.full((1, 1, 8, 1), np.nan, np.float32)
    ring = ring_append(machine, ring, np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1), [0])
    held = []
    for token in range(6, 10):
        ring = ring_append(machine, ring, np.full((1, 1, 1, 1), token, np.float32), [token])
        order = [position % 8 for position in range(max(0, token - 7), token + 1)]
        held.append(ring[0, 0, order, 0].tolist())
    assert held == [list(range(7)), list(range(8)), list(range(1, 9)), list(range(2, 10))]


def test_ring_and_pages_hold_what_their_emulation_holds(machine: KernelBench) -> None:
    new, past = torch.from_numpy(inputs(2, 3, 3, 5, 1, 17)[0].copy()), torch.tensor([6, 30])
    ring = torch.zeros(2, 3, 8, 17)
    got = ring_append(machine, ring.numpy().copy(), new.numpy(), past.tolist())
    torch.ops.anvil.kv_append_ring(ring, new, past)
    assert got.tobytes() == ring.numpy().tobytes()

    pages, table = torch.zeros(11, 3, 8, 17), torch.randperm(11, generator=torch.Generator().manual_seed(2))[:10]
    kernel = kernels.get("kv_append").build(machine.target, "f32", "paged")
    arguments = (new.numpy(), past.numpy(), table.view(2, 5).numpy(), pages.numpy().copy())
    got = machine.run(kernel, *arguments, threads=2)
    torch.ops.anvil.kv_append_paged(pages, table.view(2, 5), new, past)
    assert got.tobytes() == pages.numpy().tobytes()


def test_a_ring_too_small_for_window_and_tokens_is_refused() -> None:
    q, ring = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 9, 4)
    with pytest.raises(InputError, match=r"9 slots, window=8, 3 tokens at once; expected at least 10"):
        torch.ops.anvil.attention_ring(q, ring, ring, torch.tensor([0]), 1.0, 8, None)
