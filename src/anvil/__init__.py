"""anvil: PyTorch models -> MLIR -> native code for x86-64, AArch64 and RISC-V CPUs.

The entries are imported when first asked for: ``import anvil`` itself loads neither PyTorch nor MLIR.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anvil.api import compile, compile_program
    from anvil.frontend.capture import capture
    from anvil.frontend.dynamo.explain import explain

__all__ = ["capture", "compile", "compile_program", "explain"]

_HOME = {
    "capture": "anvil.frontend.capture",
    "compile": "anvil.api",
    "compile_program": "anvil.api",
    "explain": "anvil.frontend.dynamo.explain",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'anvil' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
