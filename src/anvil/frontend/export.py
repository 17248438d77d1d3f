"""The exporter, as capture uses it: one call, with Python lines for every node and for every failure."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._decomp import _should_decompose_because_unsafe_op
from torch.export import Dim, ExportedProgram
from torch.fx.proxy import TracerBase

from anvil.errors import InputError, RefusedError, UnsupportedError

aten = torch.ops.aten
Dynamic = Sequence[Mapping[int, str]]
Ranges = Mapping[str, tuple[int, int | None]]

# Composite views and casts that CANONICAL_SPELLING, CANONICAL_VIEWS and DROP_NOOPS rewrite. ``detach_`` counts: the
# exporter calls it on constants only, and it changes no value.
COMPOSITE_VIEWS = (
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten.reshape.default,
    aten.contiguous.default,
    aten.chunk.default,
    aten.detach_.default,
)
_TORCH_HOME = str(Path(torch.__file__).parent)


class Adapter(torch.nn.Module):
    """Gives any callable the form the exporter wants: tensors in, a flat tuple of tensors out."""

    def __init__(self, function: Callable[..., Any], kwargs: Mapping[str, Any], select: Callable[[Any], Any] | None):
        super().__init__()
        self.captured = function
        self._kwargs = dict(kwargs)
        self._select = select

    def forward(self, *args: torch.Tensor) -> Any:
        result = self.captured(*args, **self._kwargs)
        return result if self._select is None else self._select(result)


def export(
    adapter: Adapter, name: str, examples: tuple[torch.Tensor, ...], dynamic: Dynamic, limits: Ranges
) -> ExportedProgram:
    """Trace the adapter; the result is functional but for composite views and casts.

    Raises InputError or UnsupportedError, with the Python line, if it cannot be traced for all sizes in ``limits``.
    """
    dims = {size: Dim(size, min=low, max=high) for size, (low, high) in limits.items()}
    shapes = tuple({dim: dims[size] for dim, size in per_input.items()} for per_input in dynamic)
    try:
        with torch.no_grad(), _user_stack_traces(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own deprecations, nothing the caller could act on
            exported = torch.export.export(adapter, examples, dynamic_shapes=(shapes,), strict=False)
            # Decomposing traces the program a second time, which takes as long as the export itself.
            return exported if _is_functional(exported.graph) else exported.run_decompositions({})
    except Exception as error:
        raise _capture_error(name, error) from error


@contextmanager
def _user_stack_traces() -> Iterator[None]:
    """Let nodes remember every frame of the user's code; the exporter by itself keeps functions named ``forward``."""

    def user_frames(_: TracerBase, frames: traceback.StackSummary) -> traceback.StackSummary:
        own = [i for i, frame in enumerate(frames) if frame.filename == __file__]
        kept = [frame for frame in frames[own[-1] + 1 :] if not frame.filename.startswith(_TORCH_HOME)]
        return traceback.StackSummary.from_list(kept)

    original = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = user_frames
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = original


def _is_functional(graph: torch.fx.Graph) -> bool:
    """Whether a graph has no in-place operations, no control flow, and only views that normalisation knows."""
    for node in graph.nodes:
        if node.op == "get_attr" or isinstance(node.target, torch._ops.HigherOrderOperator):
            return False
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(node.target.name(), "CompositeImplicitAutograd")
        aliases = composite and any(parameter.alias_info for parameter in schema.arguments)
        hidden_effect = _should_decompose_because_unsafe_op(node.target)  # batch norms that update their statistics
        if (schema.is_mutable or aliases or hidden_effect) and node.target not in COMPOSITE_VIEWS:
            return False
    return True


def _capture_error(name: str, error: Exception) -> InputError | UnsupportedError:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_TORCH_HOME) and frame.filename != __file__
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    reason = str(error).strip().split("\n\n")[0]
    if "Constraints violated" in str(error) or "specialized" in str(error):
        return InputError(f"capturing {name!r}: a dynamic size is not free in this program{where}: {reason}")
    if type(error) in (RuntimeError, IndexError, ValueError):  # classes of its own tell what export is not able to
        return RefusedError(f"capturing {name!r}: PyTorch refuses{where}: {type(error).__name__}: {reason}")
    return UnsupportedError(
        f"capturing {name!r} failed{where}: {type(error).__name__}: {reason}. Expected a forward without"
        " data-dependent control flow; rewrite that line with tensor operations"
    )
