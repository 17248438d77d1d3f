"""The model in plain PyTorch, from the same weights: the golden in float64, and eager float32 as second yardstick.

The fp64 golden takes the float32 weights as exact numbers and computes everything after them in float64. Model code
that pins an operation to float32 (norms, softmax) is lifted to float64 as well. The rotary tables alone stay float32:
their buffers are float32 in the program itself, so their rounding is part of the question, not of the answer.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from torch.overrides import TorchFunctionMode

from assay.cache import cached
from assay.errors import WeightsError
from assay.tokens.source import check, weights_hash


class Reference:
    """A PyTorch causal language model over token ids, without cache tricks: every call is one plain forward pass.

    ``dtype`` float64 is the golden, float32 is eager. Raises :class:`WeightsError` when the weights do not load.
    """

    def __init__(self, path: Path, dtype: torch.dtype = torch.float64) -> None:
        self.module = load_module(path)
        self.dtype = dtype
        if dtype != torch.float32:
            for parameter in self.module.parameters():
                parameter.data = parameter.data.to(dtype)

    @classmethod
    def eager(cls, path: Path) -> Reference:
        """PyTorch eager in float32: the second yardstick."""
        return cls(path, torch.float32)

    @property
    def layers(self) -> dict[str, torch.nn.Module]:
        """The repeated decoder layers, by module path, in order."""
        stacks = {name: m for name, m in self.module.named_modules() if isinstance(m, torch.nn.ModuleList)}
        name, stack = max(stacks.items(), key=lambda item: len(item[1]))
        return {f"{name}.{index}": layer for index, layer in enumerate(stack)}

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """[len(ids), vocabulary] in this reference's dtype."""
        return self._forward(torch.tensor([list(ids)]))[0].numpy()

    def last_logits(self, ids: Sequence[int]) -> np.ndarray:
        """[vocabulary] logits after the last id; the head is computed for that row alone."""
        return self._forward(torch.tensor([list(ids)]), logits_to_keep=1)[0, -1].numpy()

    def residuals(self, ids: Sequence[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Logits as :meth:`logits`, and the residual stream after each layer: name -> [len(ids), hidden]."""
        stream: dict[str, np.ndarray] = {}
        with hooked({layer: _keep(stream, name) for name, layer in self.layers.items()}):
            logits = self.logits(ids)
        return logits, stream

    def greedy(self, ids: Sequence[int], new_tokens: int) -> list[int]:
        """``new_tokens`` greedy ids after ``ids`` (stop tokens do not stop it), with PyTorch's own KV cache."""
        from transformers import DynamicCache

        cache, out, step = DynamicCache(), [], list(ids)
        for _ in range(new_tokens):
            step = [int(self.step(step, cache)[-1].argmax())]
            out += step
        return out

    def step(self, ids: Sequence[int], cache: Any) -> np.ndarray:
        """Append ids to ``cache`` (a transformers cache); logits [len(ids), vocabulary] of them."""
        return self._forward(torch.tensor([list(ids)]), cache=cache, use_cache=True)[0].numpy()

    def _forward(self, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        with torch.no_grad(), _Lift(self.dtype):
            return self.module(ids, **({"use_cache": False} | options)).logits


def load_module(path: Path) -> Any:
    """The transformers model of a GGUF file or Hugging Face folder, in float32, with PyTorch's fused attention.

    Dequantising a GGUF file takes long, so its float32 form is kept in the cache, under the file's hash.
    """
    check(path)
    if path.is_dir():
        return _from_pretrained(path)
    return _from_pretrained(cached(f"dequantised/{weights_hash(path)[:32]}", lambda folder: _dequantise(path, folder)))


def _dequantise(path: Path, folder: Path) -> None:
    module = _from_pretrained(path.parent, gguf_file=path.name)
    folder.mkdir()
    save_model(module, str(folder / "model.safetensors"), metadata={"format": "pt"})
    config = module.config.to_dict()
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config))


def _from_pretrained(folder: Path, **options: Any) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options |= {"dtype": torch.float32, "attn_implementation": "sdpa", "local_files_only": True}
    try:
        with redirect_stderr(io.StringIO()):  # the GGUF reader draws a progress bar of its own
            return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise WeightsError(f"loading weights={folder} into PyTorch: {error}") from error


@contextmanager
def hooked(hooks: dict[torch.nn.Module, Callable]):
    """Forward hooks on the given modules, for the time of a ``with`` block."""
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _keep(stream: dict[str, np.ndarray], name: str) -> Callable:
    def hook(_module, _inputs, output) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        stream[name] = hidden[0].numpy().copy()

    return hook


class _Lift(TorchFunctionMode):
    """Turns casts of a wide tensor to float32 into no cast, so that a model run in float64 stays there."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        wide = bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype == self.dtype
        if self.dtype == torch.float32 or not wide:
            return func(*args, **kwargs)
        if func is torch.Tensor.float:
            return args[0]
        args = tuple(self.dtype if arg is torch.float32 else arg for arg in args)
        kwargs = {key: self.dtype if value is torch.float32 else value for key, value in kwargs.items()}
        return func(*args, **kwargs)
