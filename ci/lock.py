"""Rebuild requirements.lock from pyproject.toml: exact versions and hashes of everything but torch.

Resolving is pip-compile's work. Two things are ours: torch is left out, since its CPU build and its default build
are different files under one version (ci/bootstrap installs it by version, see there), and the models group is
added without what it depends on.

Usage: python ci/lock.py            (asks the package registry; needs the dev extra)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
HEADER = """\
# Every package of the project and of its development tools, with hashes. Written by `make lock`; do not edit.
# torch is not in this file: ci/bootstrap installs it after these, by version, because its CPU build and its default
# build are different files under one version number. Install with --require-hashes --no-deps.
"""
WITHOUT_HASH = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)==")


def blocks(text: str) -> list[str]:
    """Requirement blocks of pip-compile's output: a `name==version` line and its hash lines, comments dropped."""
    found: list[str] = []
    for line in text.splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            found.append(line)
        elif found and line.strip().startswith("--hash="):
            found[-1] += "\n" + line
    return [block.rstrip(" \\") for block in found]


def compiled(source: Path, *options: str) -> str:
    """pip-compile's output for ``source``, without any index line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.txt"
        quiet = ("--quiet", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-header")
        command = [sys.executable, "-m", "piptools", "compile", *quiet, "--generate-hashes", "--allow-unsafe"]
        subprocess.run([*command, *options, "--output-file", str(out), str(source)], check=True, cwd=ROOT)
        return out.read_text()


def hashes_of(requirement: str) -> str:
    """A lock block for one package alone, its own dependencies ignored."""
    with tempfile.TemporaryDirectory() as folder:
        download = ["download", "--quiet", "--no-deps", "--dest", folder, requirement]
        subprocess.run([sys.executable, "-m", "pip", *download], check=True)
        files = sorted(str(path) for path in Path(folder).iterdir())
        printed = subprocess.run(
            [sys.executable, "-m", "pip", "hash", *files], check=True, capture_output=True, text=True
        )
    lines = [f"    {line}" for line in printed.stdout.splitlines() if line.startswith("--hash=")]
    return " \\\n".join([requirement, *lines])


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = blocks(compiled(ROOT / "pyproject.toml", "--strip-extras", "--extra", "dev"))
    locked = [block for block in locked if not WITHOUT_HASH.match(block)]
    locked += [hashes_of(requirement) for requirement in project["dependency-groups"]["models"]]
    LOCK.write_text(HEADER + "\n".join(sorted(locked, key=str.lower)) + "\n")
    print(f"{LOCK.name}: {len(locked)} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
