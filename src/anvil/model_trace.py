"""From a language model to its graphs and plans: what runs when the cache does not know the answer.

Importing this brings in PyTorch's tracer, which takes longer than a start that needs none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from anvil import attention as attentions
from anvil.errors import InputError
from anvil.frontend.capture import capture
from anvil.frontend.decoding import greedy, last_row
from anvil.frontend.incrementalise import incrementalise
from anvil.frontend.stages import fuse
from anvil.graph.layers import layer_outputs, module_points
from anvil.graph.program import GraphProgram
from anvil.lower import lower
from anvil.model_plans import Choices, ModelPlans
from anvil.quant import Stored
from anvil.runtime.model import Points
from anvil.timing import Stopwatch

_VARIANTS = {"prefill": "flash", "decode": "decode"}  # for phases that the chosen variant does not claim


@dataclass(frozen=True)
class Programs:
    """A model's graphs: all logits of a whole sequence, and the step over a cache. They serve every target."""

    whole: GraphProgram
    steps: GraphProgram


def trace(module: torch.nn.Module, choices: Choices, stored: Mapping[str, Stored], watch: Stopwatch) -> Programs:
    """The graphs of a module, each operation of it fused that can be."""
    with watch.stage("capture"):
        captured = _capture(module, choices.context)
        captured.stored = {name: stored[path] for name, path in captured.paths.items() if path in stored}
    with watch.stage("fuse"):
        whole = fuse(captured)
        _logits_of(whole)
    with watch.stage("incrementalise"):
        return Programs(whole, greedy(last_row(incrementalise(whole, choices.kv))))


def lowered(programs: Programs, choices: Choices, weights: set[str], watch: Stopwatch) -> ModelPlans:
    """The plans of a model's graphs; ``weights`` are the names of its parameters that its source holds."""
    with watch.stage("lower"):
        phases = attentions.get(choices.attention).phases
        many, one = (choices.attention if phase in phases else other for phase, other in _VARIANTS.items())
        # The model refuses ids outside the vocabulary before they are fed.
        options: dict[str, Any] = {"quant": choices.quant, "trusted": programs.whole.inputs[:1]}
        logits = lower(programs.whole, choices.target, attention=many, **options)
        prefill = lower(programs.steps, choices.target, attention=many, **options)
        decode = lower(programs.steps, choices.target, attention=one, **options, fixed={"S": 1})
    whole = programs.whole
    held = {name: path for name, path in whole.paths.items() if path in weights}
    return ModelPlans(
        logits=logits,
        prefill=prefill,
        decode=decode,
        vocabulary=int(_logits_of(whole).shape[-1]),
        layers={layer: node for layer, node in layer_outputs(whole).items() if node in logits.values},
        inside=Points(
            [point for point in module_points(whole) if point.node in logits.values],
            [point for point in module_points(programs.steps) if point.node in decode.values],
        ),
        paths=dict(whole.paths),
        shapes={path: tuple(whole.params[name].shape) for name, path in held.items()},
        constants={name: value for name, value in whole.params.items() if name not in held},
    )


def _capture(model: torch.nn.Module, context: int) -> GraphProgram:
    """The forward pass from ids to logits; transformers models without their own cache."""
    ids = torch.zeros((2, max(2, min(8, context))), dtype=torch.int64)
    is_transformers = hasattr(model, "config") and hasattr(model, "generation_config")
    return capture(
        model,
        (ids,),
        ({0: "B", 1: "S"},),
        type(model).__name__,
        ranges={"S": (1, max(2, context))},
        kwargs={"use_cache": False} if is_transformers else None,
        select=_select_logits if is_transformers else None,
    )


def _select_logits(output: Any) -> torch.Tensor:
    return output.logits


def _logits_of(program: GraphProgram) -> torch.Tensor:
    outputs: Any = program.module.graph.output_node().args[0]
    value = outputs[0].meta["val"]
    if len(outputs) != 1 or value.ndim != 3:
        shapes = [tuple(output.meta["val"].shape) for output in outputs]
        raise InputError(
            f"compiling {program.name!r} as a language model: it returns {shapes}, "
            "expected one tensor [batch, tokens, vocabulary]; use compile_program for other programs"
        )
    return value
