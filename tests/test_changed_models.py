"""Models whose PyTorch code was changed compile as they are: logits inside a bound, tokens those of fp64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from changed_models import MODELS, captured
from tiny_models import (
    one_thread,  # noqa: F401
    run,
    token_ids,
)

import anvil
from anvil.frontend.stages import fuse

TARGET = "x86_64-avx2"
CONTEXT = 20
IDS = token_ids(2, 7, seed=3)


def eager(module, ids):
    with torch.no_grad():
        output = module(ids)
    return getattr(output, "logits", output)


def in_double(program):
    """ids -> fp64 logits of the same program, on the same weights."""
    fused = fuse(program)
    double = replace(fused, params={name: tensor.double() for name, tensor in fused.params.items()})
    return lambda ids: run(double, ids)


def bound(module, golden, ids):
    """Twice the largest error of eager PyTorch in the same type, and 4 ulp of the largest logit."""
    exact = golden(ids)
    worst = (eager(module, ids).double() - exact).abs().max().item()
    return 2 * worst + 4 * float(np.spacing(np.float32(exact.abs().max().item())))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_logits_are_inside_the_bound_and_tokens_are_those_of_fp64(name, monkeypatch):
    module, program = captured(name)
    monkeypatch.setattr("anvil.model_trace.capture", lambda *_, **__: program)  # capturing again takes most of the time
    golden = in_double(program)
    model = anvil.compile(module, TARGET, context=CONTEXT)

    for ids in (IDS, IDS[:1, :1]):
        error = np.abs(model.logits(ids) - golden(ids).numpy()).max()
        assert error <= bound(module, golden, ids)

    ids = IDS[0].tolist()
    certified = 0
    for token in model.generate(ids, CONTEXT - len(ids)).ids:
        so_far = torch.tensor([ids])
        first, second = golden(so_far)[0, -1].topk(2).values.tolist()
        if first - second <= 2 * bound(module, golden, so_far):
            break  # a near tie: any continuation is right
        assert token == golden(so_far)[0, -1].argmax()
        ids.append(token)
        certified += 1
    assert certified >= 3, "choose other ids: the margins certify too little"
