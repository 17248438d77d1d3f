"""Modules on their own inputs: right where whole runs of a mode with rounding ties are not comparable, and strict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay import backends
from assay.backends._torch_model import ModulePoint, TorchModel
from assay.reference import quantise
from assay.tokens import local, registry
from assay.tokens.golden import load_golden
from assay.tokens.quantised import emulation
from assay.tokens.reference import Reference
from assay.tokens.source import resolve

Rule = Callable[[np.ndarray], np.ndarray]
MODE = "w8a8"
SPEC = registry.model("llama-tiny")


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(resolve(SPEC), emulation=emulation(MODE, resolve(SPEC)))


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return load_golden(registry.golden_path(SPEC)).prompts[4].ids[:24].tolist()


class Emulated(TorchModel):
    """PyTorch eager float32 of the mode, with what enters its linear layers in sight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
        super().__init__(str(resolve(SPEC)))
        with monkeypatch.context() as patch:
            patch.setitem(quantise.MODES, MODE, replace(quantise.MODES[MODE], activations=rule))
            self._reference = Reference.eager(resolve(SPEC), emulation=emulation(MODE, resolve(SPEC)))

    def points(self, *, cached: bool = False) -> list[ModulePoint]:
        layers = [point for point in super().points(cached=cached) if "layers" in point.name]
        entering = [replace(p, name=f"{p.name}:in") for p in layers if p.ops == ("Linear",)]
        return [*layers, *entering]


def per_tensor(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max() / np.float32(127)
    return np.rint(x / scale).astype(np.float64) * scale


def truncated(x: np.ndarray) -> np.ndarray:
    scale = quantise.largest(x) / np.float32(127)
    return np.trunc(x / scale).astype(np.float64) * scale


def half_up(x: np.ndarray) -> np.ndarray:
    """Codes one too large, but in only one row of the sequence."""
    right = quantise.per_row(x)
    right[..., 5:6, :] = np.ceil(x[..., 5:6, :] / 0.01) * 0.01
    return right


def test_the_compiled_model_and_eager_are_inside_every_bound(
    reference: Reference, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = backends.load("anvil").load_model(str(resolve(SPEC)), "x86_64-avx2", quant=MODE, context=64)
    for model in (compiled, Emulated(monkeypatch, quantise.per_row)):
        report = local.local_report(reference, model, ids, MODE)
        assert report.first_outside is None and len(report.points) > 40, str(report)
        assert report.worst.headroom < 0.5


@pytest.mark.parametrize("fault", [per_tensor, truncated, half_up])
def test_a_wrong_rounding_of_activations_is_found_at_the_first_linear_layer(
    reference: Reference, ids: list[int], monkeypatch: pytest.MonkeyPatch, fault: Rule
) -> None:
    place = local.local_report(reference, Emulated(monkeypatch, fault), ids, MODE).first_outside
    assert place is not None and place.point == "model.layers.0.self_attn.q_proj"
    assert place.headroom > 10 and "made by Linear" in str(place)


def test_every_linear_and_decoder_layer_is_restarted(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    edges = [point.name for point in Emulated(monkeypatch, quantise.per_row).points()]
    linear = [name for name, m in reference.module.named_modules() if isinstance(m, torch.nn.Linear)]
    fed = local.feeds(reference, edges)
    assert set(linear) - set(fed) == {"lm_head"}, "its activations are not rounded"
    assert set(reference.layers) - set(fed) == {"model.layers.0"}, "its input is no edge of a module inside a layer"


def test_a_reference_that_streams_its_weights_says_the_same(reference: Reference, ids: list[int]) -> None:
    """It takes all runs of the drift as one batch."""
    model = backends.load("anvil").load_model(str(resolve(SPEC)), "x86_64-avx2", quant=MODE, context=64)
    streamed = Reference(resolve(SPEC), emulation=emulation(MODE, resolve(SPEC)), streamed=True)
    whole, part = (local.local_report(one, model, ids[:8], MODE) for one in (reference, streamed))
    assert [point.point for point in part.points] == [point.point for point in whole.points]
    assert part.worst.headroom == pytest.approx(whole.worst.headroom, rel=0.5) and part.worst.headroom < 0.5
