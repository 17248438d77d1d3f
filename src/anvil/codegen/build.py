"""Kernels -> objects -> one shared object per target."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from anvil.codegen import backend, cache, lowering, tools, wrapper
from anvil.kernels.base import Kernel
from anvil.pipelines import KERNEL_TO_LLVM
from anvil.targets.base import Target
from anvil.timing import Stopwatch


@dataclass(frozen=True)
class Object:
    """One kernel's machine code. ``key`` hashes what it was made from: equal key, same code."""

    name: str
    object: bytes
    key: str


@dataclass(frozen=True)
class Library:
    """A self-contained shared object. ``key`` hashes its content; ``symbols`` maps kernel names to packed entries.

    ``compile_ms`` has the kernels that were compiled to make it, and the milliseconds each took: none of those that
    the cache knew.
    """

    data: bytes
    key: str
    symbols: dict[str, str]
    compile_ms: Mapping[str, float] = field(default_factory=dict, compare=False)


def compile_kernel(kernel: Kernel, target: Target) -> Object:
    """Compile ``kernel`` for ``target``, through the cache. Raises :class:`anvil.codegen.lowering.LoweringError`."""
    key = _kernel_key(kernel, target)
    return Object(kernel.name, cache.get_or_make(key, lambda: _compile(kernel, target)), key)


def link(objects: Iterable[Object], target: Target) -> bytes:
    """Link objects into a shared object that needs nothing from outside."""
    inputs = {f"{index:04d}": item.object for index, item in enumerate(objects)}
    inputs["memory"] = tools.compile_c("memory.c", target.machine, *tools.OBJECT)
    return tools.link_shared(inputs)


def compile_library(kernels: Iterable[Kernel], target: Target) -> Library:
    """Compile and link ``kernels``, through the cache; the result does not depend on their order."""
    kernels = sorted(kernels, key=lambda kernel: kernel.name)
    key = cache.key("library", repr(target), *(_kernel_key(kernel, target) for kernel in kernels))
    watch = Stopwatch()
    data = cache.get_or_make(key, lambda: link([_timed(kernel, target, watch) for kernel in kernels], target))
    return replace(library_of(data, [kernel.name for kernel in kernels]), compile_ms=watch.ms)


def _timed(kernel: Kernel, target: Target, watch: Stopwatch) -> Object:
    """The kernel's object; ``watch`` sees only what was not in the cache."""
    key = _kernel_key(kernel, target)

    def make() -> bytes:
        with watch.stage(kernel.name):
            return _compile(kernel, target)

    return Object(kernel.name, cache.get_or_make(key, make), key)


def library_of(data: bytes, names: Iterable[str]) -> Library:
    """A linked shared object as a library of the kernels ``names``."""
    return Library(data, hashlib.sha256(data).hexdigest(), {name: wrapper.symbol(name) for name in names})


def llvm_ir(kernel: Kernel, target: Target) -> str:
    """The kernel as LLVM IR text before LLVM's optimiser, wrapper included."""
    return lowering.to_llvm_ir(kernel, target) + "\n" + wrapper.packed_wrapper(kernel, target)


def optimised_module(kernel: Kernel, target: Target) -> backend.llvm.ModuleRef:
    """The kernel as optimised LLVM IR, wrapper included."""
    return backend.optimise(llvm_ir(kernel, target), target, exports=(wrapper.symbol(kernel.name),))


def _compile(kernel: Kernel, target: Target) -> bytes:
    return backend.emit_object(optimised_module(kernel, target), target)


def _kernel_key(kernel: Kernel, target: Target) -> str:
    return cache.key(kernel.name, repr(kernel.params), kernel.mlir, repr(target), repr(KERNEL_TO_LLVM), _toolchain())


@functools.cache
def _toolchain() -> str:
    """Everything outside a kernel that shapes its code: package versions and the sources of this package."""
    packages = ("xtc-mlir-python-bindings", "llvmlite")
    versions = [tools.version(), *(f"{name}={metadata.version(name)}" for name in packages)]
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return cache.key(*versions, *(path.read_bytes() for path in sources))
