"""Capture: a PyTorch module or function becomes a functional ATen graph whose weights are arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.graph import _snake_case

import anvil.graph.ops  # noqa: F401  (registers torch.ops.anvil)
from anvil.errors import InputError, UnsupportedError
from anvil.frontend.experts import experts_by_index
from anvil.frontend.export import Adapter, Dynamic, Ranges, export
from anvil.graph.describe import describe_node
from anvil.graph.program import GraphProgram
from anvil.graph.symbolic import fake_copy, fake_mode, propagate

_SMALLEST_EXAMPLE = 2  # torch.export takes an example size of 0 or 1 for a constant


def capture(
    function: torch.nn.Module | Callable[..., Any],
    example_inputs: Sequence[torch.Tensor],
    dynamic: Dynamic = (),
    name: str = "program",
    *,
    ranges: Ranges | None = None,
    kwargs: Mapping[str, Any] | None = None,
    select: Callable[[Any], Any] | None = None,
) -> GraphProgram:
    """Record what ``function(*example_inputs, **kwargs)`` computes, for any value of its dynamic sizes.

    Args:
        function: a module (its parameters and buffers become arguments of the graph) or a plain function.
        example_inputs: tensors; dimensions named in ``dynamic`` must have an example size of at least 2.
        dynamic: per input, dimension -> name of its size, as in ``({0: "B", 1: "S"},)``. Equal names are equal sizes.
        ranges: inclusive range of a named size, (1, None) unless given.
        kwargs: constants passed on by name, as in ``{"use_cache": False}``.
        select: picks the tensors to keep from what ``function`` returned, as in ``lambda output: output.logits``.

    Raises:
        InputError: the arguments cannot describe a program, or contradict it (a size that is not dynamic after all).
        UnsupportedError: the program cannot be captured, or changes its buffers or inputs in place.
    """
    names = _input_names(function, len(example_inputs))
    dynamic = tuple(dynamic) + ({},) * (len(example_inputs) - len(dynamic))
    _check_inputs(names, example_inputs, dynamic)
    sizes = {size for dims in dynamic for size in dims.values()}
    limits = {size: (ranges or {}).get(size, (1, None)) for size in sorted(sizes)}

    adapter = Adapter(function, kwargs or {}, select)
    # clones: the exporter would take two inputs that are one tensor for one input
    with experts_by_index(function):
        exported = export(adapter, name, tuple(example.clone() for example in example_inputs), dynamic, limits)
    _check_signature(exported, name)
    module, params, paths = _arguments_first(exported, names)

    mode = fake_mode()
    for node in module.graph.find_nodes(op="placeholder"):
        if node.target in params:
            node.meta["val"] = fake_copy(mode, params[node.target], {})
        else:
            position = names.index(node.target)
            node.meta["val"] = fake_copy(mode, example_inputs[position], dynamic[position])
    propagate(module, mode)
    return GraphProgram(name, module, names, params, paths, limits)


def _input_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Names of the first ``count`` parameters of ``function``."""
    signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    names = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(names) < count and any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
        names += [f"input_{position}" for position in range(len(names), count)]
    if len(names) < count:
        raise InputError(f"capturing: got {count} example inputs, expected at most {len(names)}: {', '.join(names)}")
    return tuple(names[:count])


def _check_inputs(names: Sequence[str], examples: Sequence[torch.Tensor], dynamic: Dynamic) -> None:
    if len(dynamic) > len(examples):
        raise InputError(f"capturing: dynamic describes {len(dynamic)} inputs, expected {len(examples)}")
    seen: dict[str, tuple[str, int]] = {}
    for name, example, dims in zip(names, examples, dynamic, strict=True):
        if not isinstance(example, torch.Tensor):
            raise InputError(
                f"capturing: example input {name}={example!r} is a {type(example).__name__}, expected a tensor;"
                " pass constants through kwargs"
            )
        for dim, size_name in dims.items():
            if not 0 <= dim < example.ndim:
                raise InputError(f"capturing: dynamic dimension {dim} of {name}, expected one of 0..{example.ndim - 1}")
            size = example.shape[dim]
            if size < _SMALLEST_EXAMPLE:
                raise InputError(
                    f"capturing: example size {size_name}={size} (dimension {dim} of {name}), expected at least"
                    f" {_SMALLEST_EXAMPLE}: give a larger example, the program will still accept 1"
                )
            first = seen.setdefault(size_name, (name, size))
            if first[1] != size:
                raise InputError(
                    f"capturing: dynamic size {size_name} is {first[1]} in {first[0]} and {size} in {name}, expected"
                    " equal sizes under one name"
                )


def _check_signature(exported: ExportedProgram, name: str) -> None:
    """Refuse what a functional program of tensors cannot say."""
    for spec in exported.graph_signature.input_specs:
        if spec.kind in (InputKind.CUSTOM_OBJ, InputKind.TOKEN):
            raise UnsupportedError(f"capturing {name!r}: argument {spec.arg.name} is a {spec.kind.name}, not a tensor")
    for spec in exported.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            raise UnsupportedError(
                f"capturing {name!r}: {spec.target or 'an input'} is changed in place; expected a forward without"
                " side effects. Return the new value instead"
            )
    for node in exported.graph.nodes:
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise UnsupportedError(f"capturing {name!r}: control flow is not supported: {describe_node(node)}")
    for node in exported.graph.nodes:
        if any(free_unbacked_symbols(value) for value in _tensors(node.meta.get("val"))):
            raise UnsupportedError(
                f"capturing {name!r}: the size of a result depends on values, not on sizes: {describe_node(node)};"
                " expected sizes that follow from sizes of the inputs. Use a mask instead"
            )
    for value in exported.graph.output_node().args[0]:
        if not (isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)):
            raise UnsupportedError(f"capturing {name!r}: output {value} is not a tensor; use select= to pick tensors")


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a node's metadata."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in values if isinstance(item, torch.Tensor)]


def _arguments_first(
    exported: ExportedProgram, names: tuple[str, ...]
) -> tuple[torch.fx.GraphModule, dict[str, torch.Tensor], dict[str, str]]:
    """Copy the graph with placeholders in our order and under our names; parameters that share memory become one."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    params: dict[str, torch.Tensor] = {}
    paths: dict[str, str] = {}
    by_memory: dict[tuple[Any, ...], torch.fx.Node] = {}
    nodes = {node.name: node for node in exported.graph.nodes}
    specs = exported.graph_signature.input_specs

    inputs = [nodes[spec.arg.name] for spec in specs if spec.kind is InputKind.USER_INPUT]
    for node, name in zip(inputs, names, strict=True):
        copies[node] = graph.placeholder(name)
    for spec in specs:
        if spec.kind is InputKind.USER_INPUT:
            continue
        tensor = _stored_tensor(exported, spec.target)
        memory = _memory(tensor)
        if memory not in by_memory:
            path = spec.target.removeprefix("captured.")
            placeholder = graph.placeholder(_placeholder_name(path, taken={*names, *params}))
            by_memory[memory] = placeholder
            params[placeholder.target], paths[placeholder.target] = tensor, path
        copies[nodes[spec.arg.name]] = by_memory[memory]

    for node in exported.graph.nodes:
        if node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.lint()
    return torch.fx.GraphModule({}, graph), params, paths


def _stored_tensor(exported: ExportedProgram, target: str) -> torch.Tensor:
    """The model's own tensor behind an argument: parameter, buffer (persistent or not) or lifted constant."""
    tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
    return tensor.detach()


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same window on the same memory (tied weights)."""
    storage = tensor.untyped_storage()
    memory = storage._cdata if isinstance(tensor, FakeTensor) else storage.data_ptr()  # a fake has no address
    return (memory, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)


def _placeholder_name(path: str, taken: set[str]) -> str:
    name = _snake_case(re.sub(r"\W", "_", path))  # as a graph names its nodes
    name = f"p_{name}" if name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name
