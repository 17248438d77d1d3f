"""A fixed text, cut into pieces: positions at which distributions are compared, whatever the prompts are."""

from __future__ import annotations

from pathlib import Path

from assay.tokens.tokenizer import Tokenizer

FILE = Path(__file__).with_name("corpus.txt")
PIECE = 256  # tokens: long enough for attention to have something to choose from, short enough for every model


def pieces(tokenizer: Tokenizer, positions: int, context: int) -> list[list[int]]:
    """Ids of consecutive pieces of the text, together at most ``positions`` tokens, none longer than ``context``.

    Each begins with the tokenizer's first token where it has one. Fewer when the text has no more.
    """
    first = [] if tokenizer.bos is None else [tokenizer.bos]
    size = min(PIECE, context) - len(first)
    ids = tokenizer.encode(FILE.read_text())
    found, left = [], positions
    for start in range(0, len(ids), size):
        piece = (first + ids[start : start + size])[: max(left, 0)]
        if len(piece) <= len(first):
            break
        found.append(piece)
        left -= len(piece)
    return found
