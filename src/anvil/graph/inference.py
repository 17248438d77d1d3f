"""Metadata of a call from the metadata of its operands, computed once for calls that are alike.

Fake tensors with symbolic sizes take PyTorch about a millisecond per call. A language model makes the same calls in
every layer, and metadata is a pure function of metadata: what has been asked before is answered from memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node
from torch.fx.node import map_aggregate

_answers: weakref.WeakKeyDictionary[FakeTensorMode, dict[Any, Any]] = weakref.WeakKeyDictionary()


def value_of(item: Any) -> Any:
    """Metadata of a node (fake tensor or symbolic size); anything else is its own value."""
    return item.meta["val"] if isinstance(item, Node) else item


def infer(mode: FakeTensorMode, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``meta["val"]`` of ``target(*args, **kwargs)``, whose nodes carry theirs. Calls that are alike share one object.

    Calls that change an operand in place are always made.
    """
    values, named = map_aggregate(tuple(args), value_of), map_aggregate(dict(kwargs), value_of)
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return _call(mode, target, values, named)
    known = _answers.setdefault(mode, {})
    key = (target, _key(values), _key(named))
    if key not in known:
        known[key] = _call(mode, target, values, named)
    return known[key]


def _call(mode: FakeTensorMode, target: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any]) -> Any:
    with mode, enable_python_dispatcher():  # composite kernels in C++ would ask for sizes as numbers, and fix them
        return target(*values, **named)


def _key(value: Any) -> Any:
    """Equal for operands that a call cannot tell apart by anything but their data; 1, 1.0 and True are different."""
    if isinstance(value, torch.Tensor):
        layout = (*value.shape, *value.stride(), value.storage_offset())
        return (torch.Tensor, value.dtype, value.device, value.ndim, tuple(map(_size, layout)))
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(map(_key, value)))
    if isinstance(value, dict):
        return (dict, tuple((name, _key(item)) for name, item in value.items()))
    return (type(value), _size(value))


def _size(value: Any) -> Any:
    """A symbolic size as its expression."""
    return value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
