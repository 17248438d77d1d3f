"""Compilers under test. One adapter per file; assay knows a compiled kernel only through ``protocol``."""

from __future__ import annotations

import importlib
import pkgutil

from assay.backends.protocol import Backend


def names() -> list[str]:
    """Adapters in this package; a module whose name begins with an underscore is a part of one."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "protocol" and m.name[0] != "_")


def load(name: str) -> Backend:
    """The backend ``name``: a module of this package, or the dotted path of any module exposing ``BACKEND``.

    Raises ``ValueError`` if there is no such module or it exposes none.
    """
    path = name if "." in name else f"{__name__}.{name}"
    try:
        backend = getattr(importlib.import_module(path), "BACKEND", None)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(f"{error.name}.")):
            raise
        backend = None
    if backend is None:
        raise ValueError(f"loading a backend: name={name!r}, expected one of {names()} or a module with BACKEND")
    return backend
