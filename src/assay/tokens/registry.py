"""Finds the models: every file in ``e2e/`` of the project that defines ``MODEL``."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from assay.errors import UsageError
from assay.tokens.spec import ModelSpec


def project_root() -> Path:
    """The folder that holds ``e2e/`` and ``golden/``: $ASSAY_ROOT, the checkout this package lies in, or the
    working directory. Raises :class:`UsageError` when none of them does."""
    candidates = [Path(__file__).resolve().parents[3], Path.cwd()]
    if chosen := os.environ.get("ASSAY_ROOT"):
        candidates = [Path(chosen)]
    for candidate in candidates:
        if (candidate / "e2e").is_dir():
            return candidate
    raise UsageError(
        f"looking for the project's e2e/ folder: not in {', '.join(map(str, candidates))}; "
        "run from a checkout or set ASSAY_ROOT to one"
    )


def models(root: Path | None = None) -> dict[str, ModelSpec]:
    """All models by name, sorted. Raises :class:`UsageError` when two files claim one name."""
    found: dict[str, ModelSpec] = {}
    for file in sorted(((root or project_root()) / "e2e").glob("*.py")):
        if file.stem.startswith("test_"):
            continue
        spec = _model_of(file)
        if spec is None:
            continue
        if spec.name in found:
            raise UsageError(f"loading {file}: model name={spec.name!r} is already taken by another file in e2e/")
        found[spec.name] = spec
    return dict(sorted(found.items()))


def model(name: str, root: Path | None = None) -> ModelSpec:
    """The model called ``name``. Raises :class:`UsageError` with the known names."""
    known = models(root)
    if name not in known:
        raise UsageError(f"unknown model={name!r}; known: {', '.join(known)} (one file each in e2e/)")
    return known[name]


def golden_path(spec: ModelSpec, quant: str = "fp32", root: Path | None = None) -> Path:
    """Where the stored golden of ``spec`` lies."""
    return (root or project_root()) / "golden" / f"{spec.name}-{quant}.safetensors"


def _model_of(file: Path) -> ModelSpec | None:
    module_spec = importlib.util.spec_from_file_location(f"_assay_e2e_{file.stem}", file)
    if module_spec is None or module_spec.loader is None:
        raise UsageError(f"loading {file}: not a Python file that can be imported")
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return getattr(module, "MODEL", None)
