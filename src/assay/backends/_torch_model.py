"""A language model run by PyTorch eager: what a compiled one is developed against, and compared with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.errors import UsageError
from assay.tokens.reference import Reference, watching


@dataclass(frozen=True)
class ModulePoint:
    """What leaves one module; implements :class:`assay.backends.protocol.Point`."""

    name: str
    ops: tuple[str, ...]
    source: str = ""


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

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        sampling: Mapping[str, float],
        stop: Collection[int],
        on_token: Callable[[int, int], None],
        *,
        window: int = 0,
    ) -> list[list[int]]:
        return [
            self._answer(list(prompt), new_tokens, sampling, stop, lambda token, row=row: on_token(row, token), window)
            for row, prompt in enumerate(prompts)
        ]

    def _answer(
        self,
        ids: list[int],
        new_tokens: int,
        sampling: Mapping[str, float],
        stop: Collection[int],
        on_token: Callable[[int], None],
        window: int,
    ) -> list[int]:
        """One answer, its tokens drawn with transformers' logits processors and PyTorch's random numbers."""
        processors, generator = _processors(sampling), torch.Generator().manual_seed(int(sampling.get("seed", 0)))
        self.reset()
        found, step = [], ids
        while True:
            if window and self._cache.get_seq_length() == self.context:
                self.reset()
                step = [*ids, *found][-window:]
            row = torch.from_numpy(self._reference.step(step, self._cache)[-1:])
            scores = processors(torch.tensor([[*ids, *found]]), row)
            greedy = not sampling.get("temperature")
            chosen = scores.argmax() if greedy else torch.multinomial(scores.softmax(1), 1, generator=generator)
            step = [int(chosen)]
            found += step
            on_token(step[0])
            if step[0] in stop or len(found) == new_tokens:
                return found

    def residuals(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        return self._reference.residuals(ids)[1]

    def points(self, *, cached: bool = False) -> Sequence[ModulePoint]:
        """What leaves the modules of each layer that hold weights, and the layers themselves."""
        found = []
        for name, layer in self._reference.layers.items():
            inner = [(path, m) for path, m in layer.named_modules() if path and any(True for _ in m.parameters(False))]
            found += [ModulePoint(f"{name}.{path}", (type(module).__name__,)) for path, module in inner]
            found.append(ModulePoint(name, (type(layer).__name__,)))
        return found

    def trace(self, ids: Sequence[int], names: Sequence[str], *, prompt: int | None = None) -> dict[str, np.ndarray]:
        if prompt is None:
            return next(self._reference.passes([ids], names)).seen
        self.reset()
        pieces = [ids[:prompt], *([token] for token in ids[prompt:])]
        seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
        with watching(self._reference.module, names, lambda name, value: seen[name].append(value[0].numpy())):
            for piece in pieces:
                self.prefill(piece)
        return {name: np.concatenate(rows) for name, rows in seen.items()}

    def facts(self) -> Mapping[str, Any]:
        parameters = {p.data_ptr(): p.numel() * p.element_size() for p in self._reference.module.parameters()}
        return {"weight_bytes": sum(parameters.values()), "quant": "fp32", "target": "host", "threads": self._threads}


def _processors(sampling: Mapping[str, float]) -> Any:
    """transformers' processors for the given choices, in transformers' order."""
    from transformers.generation import logits_process as generation

    made = generation.LogitsProcessorList()
    if sampling.get("repetition_penalty", 1) != 1:
        made.append(generation.RepetitionPenaltyLogitsProcessor(float(sampling["repetition_penalty"])))
    if sampling.get("temperature"):
        made.append(generation.TemperatureLogitsWarper(float(sampling["temperature"])))
        if sampling.get("top_k"):
            made.append(generation.TopKLogitsWarper(int(sampling["top_k"])))
        if sampling.get("top_p", 1) < 1:
            made.append(generation.TopPLogitsWarper(float(sampling["top_p"])))
        if sampling.get("min_p"):
            made.append(generation.MinPLogitsWarper(float(sampling["min_p"])))
    return made
