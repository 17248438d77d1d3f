"""Words for people about graph nodes: which op, on what, called from which Python line."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.fx import Node

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<code>[^\n]*)')
_TORCH_HOME = str(Path(torch.__file__).parent)
_SHORT_DTYPE = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}


def dtype_name(dtype: torch.dtype) -> str:
    """Short name as used in messages and IR: f32, i64, i1 (bool)..."""
    return _SHORT_DTYPE.get(dtype, str(dtype).removeprefix("torch."))


def source_line(node: Node) -> str:
    """``path.py:66: code`` of the innermost frame outside PyTorch that created ``node``; empty when unknown."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    outside = [frame for frame in frames if not frame["file"].startswith(_TORCH_HOME)]
    frame = (outside or frames)[-1]
    return f"{frame['file']}:{frame['line']}: {frame['code'].strip()}"


def op_name(node: Node) -> str:
    """``aten.linear`` for the default overload, ``aten.add.Tensor`` for another, a Python name for the rest."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target).removesuffix(".default")
    return getattr(node.target, "__name__", str(node.target))


def _describe_argument(argument: object) -> str:
    if isinstance(argument, Node):
        value = argument.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes = ", ".join(str(size) for size in value.shape)
            return f"{argument.name}: {dtype_name(value.dtype)}[{sizes}]"
        return f"{argument.name}: {value}"
    if isinstance(argument, (list, tuple)):
        return "[" + ", ".join(_describe_argument(item) for item in argument) + "]"
    if isinstance(argument, torch.dtype):
        return dtype_name(argument)
    return str(argument)


def describe_node(node: Node) -> str:
    """``aten.cumsum(x: f32[B, S], 1) at model.py:12: return x.cumsum(1)``: op, arguments, Python line."""
    arguments = [_describe_argument(argument) for argument in node.args]
    arguments += [f"{key}={_describe_argument(value)}" for key, value in node.kwargs.items()]
    line = source_line(node)
    return f"{op_name(node)}({', '.join(arguments)})" + (f" at {line}" if line else "")
