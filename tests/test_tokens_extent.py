"""How much of a golden a run looks at: less where the profile or an emulator says so, counted and never silent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.backends.protocol import TargetStatus
from assay.bench import widest
from assay.tokens import registry
from assay.tokens.extent import GLANCE, NOTHING, SAMPLE, SLOWLY, WHOLE, extent
from assay.tokens.stage import TokenStage


def status(name: str, executor: str, bits: int) -> TargetStatus:
    return TargetStatus(name, name, True, executor, facts={"vector_bits": bits})


NARROW, WIDE = status("narrow", "runner", 256), status("wide", "runner", 512)
EMULATED = status("emulated", "qemu-riscv64 7.2", 1024)


def test_the_widest_native_target_is_chosen_among_those_checked_by_default() -> None:
    special = replace(WIDE, name="special", facts={"vector_bits": 1024, "quick": False})
    assert widest([NARROW, EMULATED, WIDE, special, replace(WIDE, name="alike")]) == WIDE
    assert widest([special, EMULATED]) == special
    assert widest([EMULATED, replace(WIDE, runs=False)]) is None


def test_the_widest_native_target_samples_a_large_model_and_others_glance_at_it() -> None:
    large, small = registry.model("smollm2-135m"), registry.model("llama-tiny")
    assert extent(large, WIDE, whole=False, widest=True) == SAMPLE
    assert extent(large, NARROW, whole=False, widest=False) == GLANCE
    assert extent(large, NARROW, whole=True, widest=False) == WHOLE == extent(small, NARROW, whole=False, widest=False)
    assert extent(small, EMULATED, whole=True, widest=False).new_tokens == small.emulated_tokens
    assert extent(large, EMULATED, whole=True, widest=False) == NOTHING
    assert extent(large, EMULATED, whole=True, widest=False, thorough=True) == SLOWLY
    assert extent(large, EMULATED, whole=True, widest=False, thorough=True, quant="w8") == NOTHING


class Uniform:
    """A model that finds every token equally likely, and counts positions."""

    seen = 0

    def logits(self, ids: list[int]) -> np.ndarray:
        self.seen += len(ids)
        return np.zeros((len(ids), 259), np.float32)


@pytest.mark.parametrize(("positions", "looked_at"), [(None, None), (300, 300), (256, 256), (0, 0)])
def test_positions_of_the_corpus_are_cut_off_inside_a_piece(positions: int | None, looked_at: int | None) -> None:
    stage, model = TokenStage(registry.model("llama-tiny")), Uniform()
    stage.golden = replace(stage.golden, corpus=stage.golden.corpus[:3])
    whole = sum(len(piece.ids) for piece in stage.golden.corpus)

    judged = list(stage.corpus(model, positions))  # type: ignore[arg-type]

    assert model.seen == sum(each.positions for each in judged) == (whole if looked_at is None else looked_at)
    assert all(not each.ok for each in judged), "less is looked at, and what is looked at is judged as ever"
