"""Instruction contracts: what the hot loops of a kernel must be made of, and what must not be in them.

A kernel can be right and yet not use what its ISA has for it; no comparison of numbers sees that. A hot loop is an
innermost loop that holds the contract's instruction. Read from LLVM's assembly (:mod:`anvil.codegen.inspect`).
"""

from __future__ import annotations

from dataclasses import dataclass

from anvil.codegen.inspect import Loop, inner_loops


@dataclass(frozen=True)
class Contract:
    """What hot loops hold.

    Args:
        instruction: mnemonic, or the beginning of one, that does the work.
        loops: how many hot loops there are at least: one for a single row, one for a tile of several.
        least: how often the instruction is in the largest of them.
        forbidden: beginnings of mnemonics that no hot loop holds, such as those of scalar arithmetic.
        share: least part of all instructions in the largest hot loop that the work is.
    """

    instruction: str
    loops: int = 2
    least: int = 8
    forbidden: tuple[str, ...] = ()
    share: float = 0.0


def breaches(text: str, contract: Contract) -> list[str]:
    """What the code of a kernel, an :func:`anvil.codegen.assembly` text, breaks of a contract: one line each."""
    hot = [loop for loop in inner_loops(text) if loop.count(contract.instruction)]
    if len(hot) < contract.loops:
        return [f"{contract.instruction} is in {len(hot)} innermost loops, expected at least {contract.loops}"]
    largest = max(hot, key=lambda loop: loop.count(contract.instruction))
    found = [line for loop in hot for line in _breaches_of(loop, contract)]
    count, size = largest.count(contract.instruction), len(largest.instructions)
    if count < contract.least:
        found.append(f"{contract.instruction} is {count} times in loop {largest.header}, expected {contract.least}")
    if count < contract.share * size:
        found.append(f"{contract.instruction} is {count} of {size} instructions in loop {largest.header}")
    return found


def _breaches_of(loop: Loop, contract: Contract) -> list[str]:
    where, names = f"loop {loop.header}", sorted(set(loop.instructions))
    found = [f"{where} holds {name}" for name in names for part in contract.forbidden if name.startswith(part)]
    if loop.spills:
        found.append(f"{where} spills {loop.spills} values to the stack")
    return found
