"""Runs pytest in a process of its own and follows it: how far it is, and what it said."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

PERCENT = re.compile(r"\[ *(\d+)%\]")
NODE = re.compile(r"(\S+::\S+)")
SUMMARY = re.compile(r"^=+ .*\bin [\d.]+s.* =+$")


@dataclass(frozen=True)
class Finished:
    """How a pytest run ended. ``tail`` are its last lines, for when it could not even start."""

    code: int
    failed: tuple[str, ...]
    summary: str
    tail: str


def run(root: Path, arguments: Sequence[str], progress: Callable[[float], None]) -> Finished:
    """Run pytest with ``arguments`` in ``root``; ``progress`` gets the share that is done, from 0 to 1."""
    command = [sys.executable, "-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *arguments]
    failed: dict[str, None] = {}
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                if (percent := PERCENT.search(line)) is not None:
                    progress(int(percent[1]) / 100)
                    if re.search(r"\b(FAILED|ERROR)\b", line) and (node := NODE.search(line)):
                        failed[node[1]] = None
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    summary = next((line.strip("= ") for line in reversed(lines) if SUMMARY.match(line)), "")
    return Finished(code, tuple(failed), summary, "\n".join(lines[-15:]))
