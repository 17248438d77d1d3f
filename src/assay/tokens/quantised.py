"""A quantisation mode in PyTorch: weights dequantised, activations rounded where the mode rounds them.

This is the golden's side of "did the compiler do the quantised arithmetic": the same integers and scales, computed with
in float64. The rules are assay's own (:mod:`assay.reference.quantise`), written apart from any compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from assay.errors import UsageError
from assay.reference.quantise import MODES
from assay.tokens.source import gguf_reader

Rounded = Callable[[torch.Tensor], torch.Tensor]
_AT_A_TIME = 1 << 18  # weights whose numbers stay in a core's cache
_MODE_OF = {
    "Q4_0": "q4_0",
    "Q4_1": "q4_1",
    "Q8_0": "q8_0",
    "Q4_K": "q4_k",
    "Q6_K": "q6_k",
    "F16": "fp16",
    "BF16": "bf16",
}


@dataclass(frozen=True)
class Emulation:
    """What mode ``quant`` makes of one model's numbers.

    ``stored`` has the modes of the matrices that a file holds quantised, by parameter: one that it holds in the wanted
    mode already stays as it is. A ``table`` is an embedding or the output projection, ``tied`` where one matrix is
    both; a mode may treat them otherwise.
    """

    quant: str
    stored: Mapping[str, str] = field(default_factory=dict)

    def weight(self, name: str, value: torch.Tensor, *, table: bool, tied: bool) -> torch.Tensor:
        """float64 [N, K]: what the integers and scales of the weight called ``name`` mean; ``value`` f32 [N, K]."""
        own = MODES[self.quant].other(table=table, tied=tied) or self.quant
        if self.stored.get(name) == own:
            return value.double()
        return torch.from_numpy(_by_rows(MODES[own].weights, value.float().numpy()))

    def activations(self, *, table: bool) -> Rounded | None:
        """What a linear layer multiplies instead of its float32 rows [..., K], float64; None: the rows themselves."""
        rule = MODES[self.quant].activations
        return None if rule is None or table else lambda x: torch.from_numpy(rule(x.numpy()))


def _by_rows(rule: Callable[[np.ndarray], np.ndarray], weight: np.ndarray) -> np.ndarray:
    """float64 [N, K]: a mode's rule for weights [N, K], which treats outputs one by one, on all cores."""
    step = max(1, _AT_A_TIME // max(1, weight.shape[1]))
    starts = range(0, len(weight), step)
    if len(starts) < 2:
        return rule(weight)
    out = np.empty(weight.shape, np.float64)

    def fill(first: int) -> None:
        out[first : first + step] = rule(weight[first : first + step])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(fill, starts))
    return out


def emulation(quant: str, path: Path) -> Emulation | None:
    """The emulation of a mode on the model at ``path``; None for fp32. Raises :class:`UsageError`."""
    if quant == "fp32":
        return None
    if quant not in MODES:
        raise UsageError(f"emulating quant={quant!r} in PyTorch: not known; known: fp32, {', '.join(MODES)}")
    return Emulation(quant, stored_modes(path))


@lru_cache(maxsize=4)
def stored_modes(path: Path) -> Mapping[str, str]:
    """Modes of the matrices of a GGUF file, by the parameter's name in PyTorch; none for a folder."""
    if not path.is_file():
        return {}
    import gguf

    reader = gguf_reader(path)
    kind = str(reader.fields["general.architecture"].contents())
    (architecture,) = [known for known, name in gguf.MODEL_ARCH_NAMES.items() if name == kind]
    types = {tensor.name: _MODE_OF.get(tensor.tensor_type.name, "") for tensor in reader.tensors}
    blocks = sum(name.endswith("attn_norm.weight") for name in types)
    names = gguf.get_tensor_name_map(architecture, blocks)
    parts = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    candidates = ["model.embed_tokens", "lm_head"]
    candidates += [f"model.layers.{block}.{part}" for block in range(blocks) for part in parts]
    found = {f"{name}.weight": types.get(f"{names.get_name(name)}.weight", "") for name in candidates}
    return {name: mode for name, mode in found.items() if mode}
