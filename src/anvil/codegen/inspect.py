"""What the code generator made of a kernel: its assembly, its innermost loops, what it spilled to the stack.

Read from LLVM's own assembly output, whose comments mark loops and spills on every ISA alike, so an instruction
contract ("the hot loop holds 12 fused multiply-adds and spills nothing") is one text for all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from anvil.codegen import backend, build
from anvil.kernels.base import Kernel
from anvil.targets.base import Target

_LABEL = re.compile(r"^\.L(BB\w+):")
_FALL_THROUGH = re.compile(r"^\W*%bb\.\d+:")  # a block that nothing jumps to has no label, only this comment
_HEADER = re.compile(r"This Inner Loop Header: Depth=(\d+)")
_INSIDE = re.compile(r"in Loop: Header=(BB\w+) Depth=\d+")
_SPILL = re.compile(r"\bSpill\b")
_RELOAD = re.compile(r"\bReload\b")
_INSTRUCTION = re.compile(r"^\s+([a-z][\w.]*)")


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its depth, its instructions in order, and how many of them go to or come from the stack."""

    header: str
    depth: int
    instructions: tuple[str, ...]  # mnemonics
    spills: int
    reloads: int

    def count(self, *prefixes: str) -> int:
        """Instructions whose mnemonic begins with one of ``prefixes``."""
        return sum(mnemonic.startswith(prefixes) for mnemonic in self.instructions)

    def histogram(self) -> Counter[str]:
        """How often each mnemonic occurs."""
        return Counter(self.instructions)


def assembly(kernel: Kernel, target: Target) -> str:
    """The assembly of ``kernel`` with LLVM's comments."""
    return backend.emit_assembly(build.optimised_module(kernel, target), target)


def inner_loops(text: str) -> list[Loop]:
    """The innermost loops of an :func:`assembly` text, in the order they begin."""
    lines_of: dict[str, list[str]] = {}
    depth_of: dict[str, int] = {}
    for lines in _blocks(text):
        comments = "\n".join(lines)
        header, inside = _HEADER.search(comments), _INSIDE.search(comments)
        label = _LABEL.match(lines[0])
        if header is not None and label is not None:
            depth_of[label[1]] = int(header[1])
            lines_of.setdefault(label[1], []).extend(lines)
        elif inside is not None:
            lines_of.setdefault(inside[1], []).extend(lines)
    return [_loop(header, depth, lines_of[header]) for header, depth in depth_of.items()]


def spills(text: str) -> int:
    """Values stored to the stack for want of registers, anywhere in an :func:`assembly` text."""
    return len(_SPILL.findall(text))


def _blocks(text: str) -> list[list[str]]:
    """Basic blocks as lists of lines, the label first."""
    blocks: list[list[str]] = [[""]]
    for line in text.splitlines():
        if _LABEL.match(line) or _FALL_THROUGH.match(line):
            blocks.append([])
        blocks[-1].append(line)
    return blocks


def _loop(header: str, depth: int, lines: list[str]) -> Loop:
    found = [match[1] for line in lines if (match := _INSTRUCTION.match(line))]
    text = "\n".join(lines)
    return Loop(header, depth, tuple(found), len(_SPILL.findall(text)), len(_RELOAD.findall(text)))
