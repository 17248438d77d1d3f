"""Where a run happened: commit, testbed, versions. The testbed id hashes stable facts only, never a clock reading."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from assay.record.rows import Run

TOOLCHAIN = ("torch", "transformers", "numpy", "hypothesis", "llvmlite", "xtc-mlir-python-bindings")


def run(*, seed: int, command: str, backend: str, profile: str) -> Run:
    """The first row of a record. Its name sorts by time and is unique."""
    now = datetime.now(UTC)
    dirty = _git("status", "--porcelain") not in ("", None)
    return Run(
        run=f"{now:%Y%m%dT%H%M%S}-{secrets.token_hex(3)}",
        started=now.isoformat(timespec="seconds"),
        commit=_git("rev-parse", "HEAD") or "unknown",
        base=_git("merge-base", "HEAD", "origin/HEAD") or _git("rev-parse", "HEAD~1") or "unknown",
        dirty=dirty,
        testbed=testbed_id(),
        seed=seed,
        command=command,
        backend=backend,
        profile=profile,
        facts=testbed(),
    )


@cache
def testbed() -> dict[str, Any]:
    """Stable facts of this machine: CPU, flags, cores, OS, toolchain versions."""
    cpu = _cpuinfo()
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "flags": sorted(cpu.get("flags", cpu.get("Features", "")).split()),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "os": f"{platform.system()} {_os_name()}",
        "python": platform.python_version(),
        "toolchain": {name: _version(name) for name in TOOLCHAIN},
    }


def testbed_id() -> str:
    """Twelve hexadecimal digits: equal on two runs if and only if all facts of :func:`testbed` are."""
    return hashlib.sha256(json.dumps(testbed(), sort_keys=True).encode()).hexdigest()[:12]


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    first = path.read_text().split("\n\n")[0] if path.exists() else ""
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.release()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(("git", *arguments), capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
