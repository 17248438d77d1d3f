"""Tests of the tests: a compiler with one known fault, and the check that must catch it for the right reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from faulty_compilers import (
    UninitialisedAccumulator,
    bf16_accumulator,
    biased_weights,
    cache_read_short,
    dropped_output_tail,
    dropped_reduction_tail,
    empty_part_counts,
    interleaved_pairs,
    judge_of,
    not_renormalised,
    page_of_the_next_row,
    ring_not_wrapped,
    same_draw_in_every_step,
    seen_too_far,
    seen_too_little,
    slot_too_late,
    tiled_heads,
    truncated,
    window_too_wide,
    without_eps,
    yarn_factor_once,
)

from assay.compare import Mismatch
from assay.formats import BF16
from assay.judge import Judge


def bound(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=judge.spec.values)


def integers(judge: Judge) -> None:
    judge.explore(judge.exact, values=("integers",))


def specials(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=judge.spec.specials)


def relation(name: str) -> Callable[[Judge], None]:
    def check(judge: Judge) -> None:
        (found,) = [p for p in judge.spec.properties if p.name == name]
        judge.explore(lambda example: found.check(judge, example), values=("normal",))

    return check


#: (fault, op, check that catches it, what its report must say). docs/faults.md lists the same faults.
FAULTS = [
    ("a dropped output tail", "add", dropped_output_tail, bound, "wrong nan"),
    ("a dropped output tail", "add", dropped_output_tail, bound, "(the tail)"),
    ("a dropped reduction tail", "linear", dropped_reduction_tail, integers, "outside its bound"),
    ("a causal frontier one too far", "attention_causal", seen_too_far, integers, "all in S="),
    ("a causal frontier one too far", "attention_causal", seen_too_far, relation("causality"), "later change a result"),
    ("a causal frontier one too short", "attention_causal", seen_too_little, integers, "outside its bound"),
    ("eps left out", "rms_norm", without_eps, bound, "outside its bound"),
    ("eps left out", "rms_norm", without_eps, specials, "wrong nan"),
    ("tile instead of repeat", "attention_full", tiled_heads, integers, "all in H="),
    ("tile instead of repeat", "attention_full", tiled_heads, relation("repeated heads"), "repeated heads differ"),
    ("a KV slot written one late", "kv_append", slot_too_late, bound, "outside its bound"),
    ("a KV cache read one short", "attention_cached", cache_read_short, integers, "outside its bound"),
    ("a window one key too wide", "attention_capped_window", window_too_wide, bound, "outside its bound"),
    ("a ring that is not wrapped", "attention_ring", ring_not_wrapped, bound, "outside its bound"),
    ("a page table read one row off", "attention_paged", page_of_the_next_row, bound, "outside its bound"),
    ("YaRN's factor once, not squared", "attention_latent", yarn_factor_once, bound, "outside its bound"),
    ("expert weights not renormalised", "experts", not_renormalised, bound, "outside its bound"),
    ("an expert's bias in its weight", "decoder_layer_deepseek_v3", biased_weights, bound, "outside its bound"),
    ("a draw that forgets its step", "lm_head_sample", same_draw_in_every_step, bound, "outside its bound"),
    ("a part without visible keys that counts", "attention_top_left", empty_part_counts, bound, "outside its bound"),
    ("an accumulator not initialised", "linear", UninitialisedAccumulator(), integers, "outside its bound"),
    ("a bf16 accumulator", "linear", bf16_accumulator, bound, "outside its bound"),
    ("a bf16 accumulator", "linear", bf16_accumulator, integers, "outside its bound"),
    ("interleaved rotary pairs", "rope", interleaved_pairs, bound, "outside its bound"),
    ("interleaved rotary pairs", "rope", interleaved_pairs, integers, "outside its bound"),
]


@pytest.mark.parametrize(("fault", "op", "function", "check", "words"), FAULTS)
def test_fault_is_caught(fault: str, op: str, function: Callable, check: Callable[[Judge], None], words: str) -> None:
    judge = judge_of(op, function)
    with pytest.raises(Mismatch) as caught:
        check(judge)
    assert words in str(caught.value), fault
    assert f"{judge.case.id}-" in str(caught.value)
    assert "replay   pytest '" in str(caught.value)


@pytest.mark.parametrize(("op", "check"), sorted({(op, check) for _, op, _, check, _ in FAULTS}, key=str))
def test_same_check_passes_without_the_fault(op: str, check: Callable[[Judge], None]) -> None:
    judge = judge_of(op, examples=20)
    if check not in (bound, integers, specials):
        pytest.skip("eager PyTorch is not bit-equal between shapes")
    check(judge)
    assert judge.tally.examples >= 20


def test_truncation_is_a_biased_rounding() -> None:
    def check(judge: Judge) -> None:
        judge.explore(judge.collect_rounding, values=("normal",))
        judge.require_unbiased()

    check(judge_of("add", fmt=BF16))
    with pytest.raises(Mismatch, match=r"add-bf16-host: rounding is biased.*\n.*mean signed error -0\.[2345]"):
        check(judge_of("add", truncated, fmt=BF16))


def test_a_shrunk_failure_is_small() -> None:
    with pytest.raises(Mismatch) as caught:
        bound(judge_of("add", dropped_output_tail))
    assert str(caught.value).startswith("add-f32-host-M1N1:")
