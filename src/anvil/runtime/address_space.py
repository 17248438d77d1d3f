"""Book-keeping of memory that lives in another process: the client decides every address there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

PAGE = 4096  # bytes; the granularity of mapping and protection
_FIRST = 64 << 30  # above any program and its heap, below where systems place stacks and mappings
_LAST = 248 << 30  # RISC-V Sv39 ends at 256 GiB


@dataclass
class Block:
    """Memory handed out: ``nbytes`` at ``address`` on pages [first, first + mapped), an unmapped page on each side."""

    address: int
    nbytes: int
    first: int
    mapped: int
    readonly: bool = False


class AddressSpace:
    """Hands out page ranges, each with an unmapped page on either side.

    A range that was freed is used again for the same number of pages. Ranges that were in use when the other process
    died are never used again, so a stale address cannot name new memory.
    """

    def __init__(self) -> None:
        self._next = _FIRST
        self._spare: defaultdict[int, list[int]] = defaultdict(list)
        self._blocks: dict[int, Block] = {}
        self._lost: set[int] = set()

    def reserve(self, nbytes: int, boundary: int = PAGE) -> int:
        """First address of a range that nothing else will use, a multiple of ``boundary``."""
        first = round_up(self._next + PAGE, boundary)
        self._next = first + round_up(nbytes, PAGE)
        if self._next > _LAST:
            raise MemoryError(
                f"reserving {nbytes} bytes in the executor: its {_LAST - _FIRST} bytes of address space are used up"
            )
        return first

    def allocate(self, nbytes: int, align: int, guard: bool) -> Block:
        """With ``guard`` the block ends at the unmapped page (modulo ``align``), otherwise it begins on a page."""
        mapped = round_up(max(nbytes, 1), PAGE)
        spare = self._spare[mapped] if align <= PAGE else []
        first = spare.pop() if spare else self.reserve(mapped, max(align, PAGE))
        address = (first + mapped - nbytes) // align * align if guard else first
        block = Block(address, nbytes, first, mapped)
        self._blocks[address] = block
        return block

    def release(self, address: int) -> Block | None:
        """Forget a block; None when it was lost with its process. Raises ``KeyError`` for what was never a block."""
        if address in self._lost:
            self._lost.remove(address)
            return None
        block = self._blocks.pop(address)
        self._spare[block.mapped].append(block.first)
        return block

    def lose_all(self) -> None:
        """The process is gone: every block is lost."""
        self._lost.update(self._blocks)
        self._blocks.clear()

    def block_at(self, address: int) -> Block | None:
        """The block that ``address`` lies in."""
        exact = self._blocks.get(address)
        if exact is not None:
            return exact
        inside = (block for block in self._blocks.values() if block.address <= address < block.address + block.nbytes)
        return next(inside, None)

    def describe(self, address: int) -> str:
        """Where a faulting ``address`` lies, in words."""
        if address < PAGE:
            return "a null pointer"
        block = self.block_at(address)
        if block is not None:
            state = "read-only " if block.readonly else ""
            return f"byte {address - block.address} of the {state}block of {block.nbytes} bytes at {block.address:#x}"
        near = min(self._blocks.values(), key=lambda block: _distance(block, address), default=None)
        if near is None or _distance(near, address) > 1 << 20:
            return "no memory of the caller's"
        if address < near.address:
            return f"{near.address - address} bytes before the block of {near.nbytes} bytes at {near.address:#x}"
        past = address - near.address - near.nbytes
        return f"{past} bytes past the end of the block of {near.nbytes} bytes at {near.address:#x}"


def _distance(block: Block, address: int) -> int:
    return max(block.address - address, address - block.address - block.nbytes)


def round_up(value: int, step: int) -> int:
    """The least multiple of ``step`` that is not below ``value``."""
    return -(-value // step) * step
