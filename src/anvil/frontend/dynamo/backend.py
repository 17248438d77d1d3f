"""The backend function that PyTorch finds through the entry point ``torch_dynamo_backends``.

Dynamo records a graph of Python-level calls; AOTAutograd makes it functional (in-place work on arguments becomes
results that it copies back, results that share memory are rebuilt) while linear, attention, softmax and the like stay
whole; what is left is compiled like any captured program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx import GraphModule

from anvil.errors import AnvilError, InputError, UnsupportedError
from anvil.frontend.dynamo.compiled import CompiledGraph
from anvil.frontend.dynamo.gradient import with_gradient
from anvil.frontend.dynamo.options import parse

aten = torch.ops.aten

# Composite operations that are kept: the patterns of fusion are written in them.
KEPT_WHOLE = (
    aten.linear.default,
    aten.matmul.default,
    aten.scaled_dot_product_attention.default,
    aten.softmax.int,
    aten.log_softmax.int,
    aten.layer_norm.default,
    aten.rms_norm.default,
    aten.repeat_interleave.self_int,
)


def anvil(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one graph of ``torch.compile``.

    Errors of anvil are raised when the compiled function is called, as they are; raised here, PyTorch would wrap them.
    """
    try:
        if mode is not None:
            raise InputError(f"torch.compile with backend anvil: mode={mode!r}, expected none; use options")
        parsed = parse(options)
    except AnvilError as error:
        return _failing(error)

    names, weights = _arguments(module)
    mutated: list[int] = []

    def compile_functional(functional: GraphModule, _: Sequence[Any]) -> CompiledGraph:
        mutated.extend(TracingContext.get().fw_metadata.mutated_inp_runtime_indices)
        plain = _unchanged_positions(functional, weights, mutated, len(names))
        return CompiledGraph(functional, plain, _names(functional, names), parsed)

    kept = {op: _keep for op in KEPT_WHOLE}
    with torch.no_grad(), _override_composite_implicit_decomp(kept):
        compiled = aot_module_simplified(
            module, example_inputs, fw_compiler=compile_functional, inference_compiler=compile_functional,
            decompositions={},
        )  # fmt: skip
    needs_gradient = torch.is_grad_enabled() and any(getattr(item, "requires_grad", False) for item in example_inputs)
    if not needs_gradient:
        return compiled
    if mutated:
        changed = ", ".join(names[i] for i in mutated)
        return _failing(
            UnsupportedError(
                f"torch.compile with backend anvil: {changed} is changed in place while gradients are recorded,"
                " expected a graph without side effects; call it under torch.no_grad()"
            )
        )
    return with_gradient(compiled, module)


def _keep(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _failing(error: AnvilError) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def _arguments(module: GraphModule) -> tuple[list[str], set[int]]:
    """Readable names of all arguments, and the positions of parameters and buffers."""
    names: list[str] = []
    weights: set[int] = set()
    for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
        name = node.name.removeprefix("l_").strip("_") or node.name
        names.append(name if name not in names else node.name)
        if node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type"):
            weights.add(position)
    return names, weights


def _origin(functional: GraphModule) -> list[int | None]:
    """For each argument of the functional graph the argument of Dynamo's graph it is; None for a merged one."""
    return [getattr(node.meta.get("desc"), "idx", None) for node in functional.graph.find_nodes(op="placeholder")]


def _unchanged_positions(functional: GraphModule, weights: set[int], mutated: Sequence[int], count: int) -> list[int]:
    """Positions of weights that the graph itself does not change."""
    return [i for i, origin in enumerate(_origin(functional)) if origin in weights and i not in mutated]


def _names(functional: GraphModule, names: Sequence[str]) -> list[str]:
    return [f"argument_{i}" if origin is None else names[origin] for i, origin in enumerate(_origin(functional))]
