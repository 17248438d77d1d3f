"""Speed of memory-bound ops: a fused chain beside the speed of a copy, softmax and layer_norm beside PyTorch.

All run in this process on the same tensors, in turn, so that a machine that drifts is slow for all alike. The process
keeps the memory it frees: otherwise every run would pay for fresh pages, and the kernel of the operating system, not
the compiled code, would be measured. And it rests before every run: PyTorch's threads spin for some milliseconds after
their work is done, on the CPUs that the next run needs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from assay.backends.protocol import Backend, Program

SIZE = 4096  # rows and columns
ROUNDS = 15
_REST_S = 0.02
_KEEP = ((-3, 1 << 30), (-1, 1 << 30))  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of glibc's mallopt, in bytes


@dataclass(frozen=True)
class OpSpeed:
    """Best times of ``op`` in ms, compiled and in PyTorch eager. ``nbytes`` go through memory at least: every input
    read once, every result written once. ``copy_gb_s`` is what a copy of as many bytes reaches in the same session."""

    op: str
    compiled_ms: float
    eager_ms: float
    nbytes: int
    copy_gb_s: float

    @property
    def gb_s(self) -> float:
        return self.nbytes / self.compiled_ms * 1e-6

    @property
    def share(self) -> float:
        """Of the speed of a copy."""
        return self.gb_s / self.copy_gb_s

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"gb_s": self.gb_s, "share_of_copy": self.share}


class Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu((x * 1.5 + 0.25).abs() - x * 0.5).clamp(max=3.0) * x


class Softmax(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)


class LayerNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (SIZE,))


OPS: Mapping[str, type[nn.Module]] = {"elementwise chain": Chain, "softmax": Softmax, "layer_norm": LayerNorm}


def op_speeds(compiler: Backend, target: str, threads: int) -> list[OpSpeed]:
    """Every op of ``OPS`` on [4096, 4096] in f32. Raises ``Unsupported`` or ``NotRunHere``."""
    for option, value in _KEEP:
        ctypes.CDLL(None).mallopt(option, value)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
        target_of_copy = torch.empty_like(x)
        runs: dict[str, Callable[[], Any]] = {"copy": lambda: target_of_copy.copy_(x)}
        for name, module in OPS.items():
            program = Program(name, module(), (x[:8],), ({0: "N"},))
            runs[f"{name} compiled"] = partial(compiler.compile_to_time(program, target).run, x, threads=threads)
            runs[f"{name} eager"] = partial(module(), x)
        best = _best(runs)
    finally:
        torch.set_num_threads(before)
    nbytes = 2 * x.nbytes
    copy = nbytes / best["copy"] * 1e-6
    return [OpSpeed(name, best[f"{name} compiled"], best[f"{name} eager"], nbytes, copy) for name in OPS]


def _best(runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The best time of each in ms, all in turn."""
    best = dict.fromkeys(runs, float("inf"))
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, run in runs.items():
                time.sleep(_REST_S)
                start = time.perf_counter()
                run()
                best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best
