"""The C compiler and the ELF linker: clang and LLD as shipped by the ``ziglang`` wheel, for every machine.

Both are called by path (a linker run takes about 10 ms), so no system compiler or cross binutils is needed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from anvil.codegen import cache
from anvil.errors import ToolMissingError

OBJECT = ("-c", "-fPIC")
SHARED = ("-shared", "-fPIC")
STATIC = ("-static", "-fno-pic", "-no-pie", "-Wl,-e,_start")

_C_OPTIONS = (
    *("-std=c11", "-O2", "-g0", "-ffreestanding", "-fno-builtin", "-nostdlib"),
    *("-fno-stack-protector", "-fno-sanitize=all", "-Wall", "-Wextra", "-Werror"),
)

SOURCES = Path(__file__).resolve().parent.parent / "runtime" / "native_src"


@functools.cache
def zig() -> str:
    """Path of the zig binary; raises :class:`ToolMissingError`."""
    spec = importlib.util.find_spec("ziglang")
    locations = spec.submodule_search_locations if spec else None
    path = Path(next(iter(locations))) / "zig" if locations else None
    if path is None or not path.exists():
        raise ToolMissingError(
            "linking kernels: the 'ziglang' package is not installed; run: pip install 'ziglang==0.17.*'"
        )
    return str(path)


@functools.cache
def version() -> str:
    """Version of the C toolchain, for cache keys."""
    return f"ziglang={metadata.version('ziglang')}"


def link_shared(objects: Mapping[str, bytes]) -> bytes:
    """Link relocatable objects (by file stem) into a self-contained shared object: no undefined symbols are allowed."""
    with tempfile.TemporaryDirectory(prefix="anvil-link-") as scratch:
        paths = []
        for stem, data in objects.items():
            path = Path(scratch, f"{stem}.o")
            path.write_bytes(data)
            paths.append(str(path))
        out = Path(scratch, "library.so")
        options = ["-shared", "--hash-style=sysv", "--no-undefined", "--gc-sections", "-z", "noexecstack"]
        _run([zig(), "ld.lld", *options, "-o", str(out), *paths], "linking kernels")
        return out.read_bytes()


def compile_c(source: str, machine: str, *options: str) -> bytes:
    """Compile one freestanding C file of ``runtime/native_src`` for ``machine``, through the cache.

    ``options`` choose what comes out: :data:`OBJECT`, :data:`SHARED` or :data:`STATIC`. Takes about 0.1 s.
    """
    path = SOURCES / source
    headers = [header.read_bytes() for header in sorted(SOURCES.glob("*.h"))]
    key = cache.key("c", machine, version(), *_C_OPTIONS, *options, path.read_bytes(), *headers)
    return cache.get_or_make(key, lambda: _compile_c(path, machine, options))


def _compile_c(path: Path, machine: str, options: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="anvil-cc-") as scratch:
        out = Path(scratch, "out")
        zig_cache = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        command = [zig(), "cc", "-target", f"{machine}-linux-musl", *_C_OPTIONS, *options, "-o", str(out), str(path)]
        _run(command, f"compiling {path.name} for {machine}", env=zig_cache)
        return out.read_bytes()


def _run(command: Sequence[str], doing: str, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{doing}: exit status {done.returncode} from {' '.join(command)}\n{done.stderr}")
