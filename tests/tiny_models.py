"""Tiny random models that the tests of the frontend share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from anvil.frontend.capture import capture
from anvil.graph.program import GraphProgram

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def randomise(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Give every parameter a spread that makes logits differ visibly; norms around one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if parameter.ndim == 1 else 0.3 * noise)
    return model.eval()


def tiny_llama(**changes: Any) -> LlamaForCausalLM:
    """A random Llama of a few thousand parameters; ``changes`` go to its configuration."""
    return randomise(LlamaForCausalLM(LlamaConfig(**(SIZES | changes))))


def token_ids(batch: int, tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab_size"], (batch, tokens), generator=torch.Generator().manual_seed(seed))


def capture_logits(model: PreTrainedModel, name: str = "tiny") -> GraphProgram:
    """The captured ``input_ids -> logits`` of a Hugging Face causal language model."""
    return capture(
        model,
        (token_ids(2, 5),),
        ({0: "B", 1: "S"},),
        name,
        kwargs={"use_cache": False},
        select=lambda output: output.logits,
    )


def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """What eager PyTorch says."""
    with torch.no_grad():
        return model(ids, use_cache=False).logits


def run(program: GraphProgram, *inputs: torch.Tensor, caches: tuple[torch.Tensor, ...] = ()) -> Any:
    """Execute the program's graph in PyTorch: one tensor, or a tuple of several."""
    with torch.no_grad():
        outputs = program.module(*inputs, *caches, *program.params.values())
    return outputs[0] if len(outputs) == 1 else outputs


# Two f32 evaluations of the same real function differ by roundings only: measured here below 1e-5 of the largest
# logit for two layers. A changed meaning (a mask, a head, a position) moves logits by percents.
ROUNDING = 5e-5


def assert_same_function(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal up to the rounding of f32, relative to the largest value; NaN nowhere."""
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    worst = (got - want).abs().max() / want.abs().max()
    assert worst < ROUNDING, f"largest difference {worst:.2e} of the largest value, expected below {ROUNDING}"


def new_caches(program: GraphProgram, batch: int, capacity: int) -> tuple[torch.Tensor, ...]:
    """Caches full of NaN: a slot that is read before it is written shows."""
    return tuple(
        torch.full((batch, spec.heads, capacity, spec.head_dim), torch.nan, dtype=spec.dtype) for spec in program.caches
    )


def run_chunks(program: GraphProgram, ids: torch.Tensor, chunks: list[int], capacity: int = 16) -> torch.Tensor:
    """Logits of an incremental program that is given ``ids`` in pieces of these lengths."""
    caches = new_caches(program, len(ids), capacity)
    pieces, start = [], 0
    for length in chunks:
        past = torch.full((len(ids),), start)
        pieces.append(run(program, ids[:, start : start + length], past, caches=caches))
        start += length
    return torch.cat(pieces, dim=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from threads, and lose much when other processes use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
