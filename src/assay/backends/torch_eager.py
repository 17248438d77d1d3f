"""PyTorch eager on the compiled side: the second yardstick, and the suite's own smoke test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from assay.backends._torch_model import TorchModel
from assay.backends.protocol import Claim, Program, TargetStatus, Unsupported


@dataclass(frozen=True)
class EagerCompiled:
    """The module itself. ``threads`` is ignored: eager's thread count is the process's."""

    module: torch.nn.Module
    artifact: str
    edges: Mapping[str, int] = field(default_factory=dict)

    def run(self, *inputs: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        with torch.no_grad():
            result = self.module(*inputs)
        return list(result) if isinstance(result, tuple | list) else [result]

    def stages(self) -> Sequence[tuple[str, Callable[..., list[torch.Tensor]]]]:
        return ()


@dataclass(frozen=True)
class EagerBackend:
    """Eager float32 on the host; it knows no quantisation and one attention."""

    name: str = "torch_eager"

    def targets(self) -> list[TargetStatus]:
        return [TargetStatus("host", "host", True, f"torch {torch.__version__}", facts={"bit_reproducible": False})]

    def modes(self) -> Mapping[str, tuple[str, ...]]:
        return {"quant": ("fp32",), "kv": ("fp32",), "attention": ("naive",)}

    def coverage(self) -> Sequence[Claim]:
        return ()

    def compile(self, program: Program, target: str, *, quant: str = "fp32", variant: str = "") -> EagerCompiled:
        if quant != "fp32":
            raise Unsupported(f"torch_eager has no quantisation mode {quant!r}")
        digest = hashlib.sha256(f"{torch.__version__} {program.name}".encode()).hexdigest()[:12]
        return EagerCompiled(program.module, digest)

    def compile_to_time(self, program: Program, target: str) -> EagerCompiled:
        return self.compile(program, target)

    def load_model(
        self,
        source: str,
        target: str,
        *,
        quant: str = "fp32",
        kv: str = "fp32",
        threads: int = 1,
        context: int | None = None,
    ) -> TorchModel:
        if quant != "fp32" or kv != "fp32":
            raise Unsupported(f"torch_eager has no quantisation mode {quant!r} with a cache in {kv!r}")
        return TorchModel(source, threads=threads, context=context)


BACKEND = EagerBackend()
