"""A language model run by PyTorch eager: what a compiled one is developed against, and compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.errors import UsageError
from assay.tokens.reference import Reference


class TorchModel:
    """Implements :class:`assay.backends.protocol.LanguageModel` in float32, with PyTorch's own KV cache."""

    def __init__(self, source: str, *, threads: int = 1, context: int | None = None) -> None:
        torch.set_num_threads(threads)
        self._reference = Reference.eager(Path(source))
        config = self._reference.module.config
        self.vocabulary: int = config.vocab_size
        self.context: int = context or config.max_position_embeddings
        self._threads = threads
        self.reset()

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        return self._reference.logits(ids)

    def reset(self) -> None:
        from transformers import DynamicCache

        self._cache = DynamicCache()

    def prefill(self, ids: Sequence[int]) -> int:
        past = self._cache.get_seq_length()
        if past + len(ids) > self.context:
            raise UsageError(f"feeding {len(ids)} tokens after {past}: context={self.context}; give a shorter prompt")
        return int(self._reference.step(ids, self._cache)[-1].argmax())

    def decode(self, token: int) -> int:
        return self.prefill([token])

    def residuals(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        return self._reference.residuals(ids)[1]

    def facts(self) -> Mapping[str, Any]:
        parameters = {p.data_ptr(): p.numel() * p.element_size() for p in self._reference.module.parameters()}
        return {"weight_bytes": sum(parameters.values()), "quant": "fp32", "target": "host", "threads": self._threads}
