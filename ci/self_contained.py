"""Fails when a tracked text file names something that exists on one machine only, or the host of a package registry.

The project must read and build the same everywhere: package names and versions say what to install, the client's own
configuration says from where.

Usage: python ci/self_contained.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# (what it is, pattern). Written so that this file itself does not match.
FORBIDDEN = (
    ("registry host", re.compile(r"\b(pypi|pythonhosted|npmjs|crates|anaconda|download\.pytorch)\.(org|com|io)\b")),
    ("Debian mirror", re.compile(r"\b(deb|security|archive|ports)\.(debian|ubuntu)\.(org|com)\b")),
    ("index option", re.compile(r"--(extra-)?index-url[= ]|--trusted-host[= ]|--find-links[= ]")),
    ("path of one machine", re.compile(r"(?<![\w.~])/(work|root|mnt|workspace)/[\w.]|(?<![\w.~])/home/(?!USER)\w")),
)


def tracked_text(root: Path) -> dict[str, str]:
    """Contents of the UTF-8 files that git tracks under ``root``, by relative path; binary files are left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    contents = {}
    for name in filter(None, listed.stdout.split("\0")):
        try:
            contents[name] = (root / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    return contents


def violations(contents: dict[str, str]) -> list[str]:
    """One ``path:line: what 'text'`` for every forbidden thing in ``contents`` (text by path)."""
    found = []
    for path, text in contents.items():
        for number, line in enumerate(text.splitlines(), start=1):
            for what, pattern in FORBIDDEN:
                if match := pattern.search(line):
                    found.append(f"{path}:{number}: {what} {match.group()!r}")
    return found


def main(root: Path = ROOT) -> int:
    found = violations(tracked_text(root))
    for line in found:
        print(f"self_contained: {line}", file=sys.stderr)
    if not found:
        print("self_contained: no registry host and no path of one machine in any tracked file")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
