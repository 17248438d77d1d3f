"""The model in plain PyTorch, from the same weights: the golden in float64, and eager float32 as second yardstick.

The fp64 golden takes the float32 weights as exact numbers and computes everything after them in float64. Model code
that pins an operation to float32 (norms, softmax) is lifted to float64 as well. The rotary tables alone stay float32:
their buffers are float32 in the program itself, so their rounding is part of the question, not of the answer.

For a quantisation mode the weights are what its integers and scales mean (:mod:`assay.tokens.quantised`).
"""

from __future__ import annotations

import copy
import functools
import io
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_model
from torch import nn
from torch.overrides import TorchFunctionMode

from assay.cache import cached
from assay.errors import WeightsError
from assay.tokens.quantised import Emulation
from assay.tokens.source import check, weights_hash
from assay.tokens.streaming import FolderWeights, blank_module, names_of_tied, stream

INPUT = ":in"  # behind the name of a module: what goes into it, not what comes out


@dataclass(frozen=True)
class Pass:
    """What one sequence of T tokens gave: logits [T, vocabulary], and by name what was watched, [T, width]."""

    logits: np.ndarray
    seen: dict[str, np.ndarray] = field(default_factory=dict)


class Reference:
    """A PyTorch causal language model over token ids, without cache tricks: every call is one plain forward pass.

    ``dtype`` float64 is the golden, float32 is eager. ``emulation`` puts its weights in a quantisation mode;
    ``streamed`` reads each weight when it is needed, for a model that does not fit into memory.
    Raises :class:`WeightsError` when the weights do not load.
    """

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype = torch.float64,
        *,
        emulation: Emulation | None = None,
        streamed: bool = False,
    ) -> None:
        self.dtype, self.streamed = dtype, streamed
        self._emulation = emulation
        if streamed:
            folder = weights_folder(path)
            self.module = blank_module(folder)
            weights, tied = FolderWeights(folder), names_of_tied(self.module)

            def read(owner: nn.Module, name: str) -> torch.Tensor:
                known = next((each for each in tied[name] if each in weights), name)
                return self._form(owner, name, weights(known))

            self._tied = _head_is_table(self.module)
            stream(self.module, read)
        else:
            self.module = load_module(path)
            self._tied = _head_is_table(self.module)
            self._convert()
        self._plain_experts()
        if emulation is not None:
            self._round_activations(emulation)

    @classmethod
    def eager(cls, path: Path, **options: Any) -> Reference:
        """PyTorch eager in float32: the second yardstick."""
        return cls(path, torch.float32, **options)

    def narrowed(self) -> Reference:
        """Eager float32 with the same weights, rounded once, and the same rounding of activations."""
        other = copy.copy(self)
        other.dtype, other.module = torch.float32, copy.deepcopy(self.module).float()
        return other

    @property
    def layers(self) -> dict[str, nn.Module]:
        """The repeated decoder layers, by module path, in order."""
        stacks = {name: m for name, m in self.module.named_modules() if isinstance(m, nn.ModuleList)}
        name, stack = max(stacks.items(), key=lambda item: len(item[1]))
        return {f"{name}.{index}": layer for index, layer in enumerate(stack)}

    def passes(
        self,
        sequences: Sequence[Sequence[int]],
        watch: Collection[str] = (),
        keep: Callable[[torch.Tensor], np.ndarray] = lambda value: value.numpy().copy(),
    ) -> Iterator[Pass]:
        """One plain forward pass over every sequence, in order.

        ``watch`` names modules whose output is kept, or with ``:in`` behind the name their input; ``keep`` makes what
        is kept of a value [tokens, width]. A streamed model takes all sequences in one pass over its weights, padded
        behind their ends, which causal attention never sees.
        """
        batches = [list(sequences)] if self.streamed else [[sequence] for sequence in sequences]
        for batch in batches:
            lengths = [len(sequence) for sequence in batch]
            ids = torch.zeros(len(batch), max(lengths), dtype=torch.int64)
            for row, sequence in enumerate(batch):
                ids[row, : len(sequence)] = torch.tensor(list(sequence))
            values: list[tuple[str, list[np.ndarray]]] = []
            with watching(self.module, watch, _recorder(values, lengths, keep)):
                logits = self._forward(ids)
            for row, length in enumerate(lengths):
                yield Pass(logits[row, :length].numpy(), {name: rows[row] for name, rows in values})

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """[len(ids), vocabulary] in this reference's dtype."""
        return next(self.passes([ids])).logits

    def last_logits(self, ids: Sequence[int]) -> np.ndarray:
        """[vocabulary] logits after the last id; the head is computed for that row alone."""
        return self._forward(torch.tensor([list(ids)]), logits_to_keep=1)[0, -1].numpy()

    def residuals(self, ids: Sequence[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Logits as :meth:`logits`, and the residual stream after each layer: name -> [len(ids), hidden]."""
        result = next(self.passes([ids], tuple(self.layers)))
        return result.logits, result.seen

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

    def _plain_experts(self) -> None:
        """Mixtures of experts one expert after the other: the fused products of PyTorch know no float64."""
        for module in self.module.modules():
            config: Any = getattr(module, "config", None)
            if hasattr(config, "_experts_implementation"):
                config._experts_implementation = "eager"

    def _convert(self) -> None:
        """Bring every parameter into its form; one that several modules share is converted once."""
        formed: dict[nn.Parameter, nn.Parameter] = {}
        for path, owner in self.module.named_modules():
            for name, parameter in list(owner._parameters.items()):
                if parameter is None:
                    continue
                if parameter not in formed:
                    value = self._form(owner, f"{path}.{name}" if path else name, parameter.data)
                    formed[parameter] = nn.Parameter(value, requires_grad=False)
                owner._parameters[name] = formed[parameter]

    def _form(self, owner: nn.Module, name: str, value: torch.Tensor) -> torch.Tensor:
        """A stored tensor as the model computes with it."""
        with torch._C.DisableTorchFunction():  # no lifting here: this is about the numbers in float32
            if self._emulation is not None and isinstance(owner, nn.Linear | nn.Embedding) and value.ndim == 2:
                table = self._is_table(owner)
                value = self._emulation.weight(name, value, table=table, tied=self._tied and owner in self._ends())
            return value.to(self.dtype)

    def _is_table(self, owner: nn.Module) -> bool:
        return isinstance(owner, nn.Embedding) or owner is self.module.get_output_embeddings()

    def _ends(self) -> tuple[nn.Module, nn.Module]:
        """The embeddings of tokens, and the output projection. A model may have other embeddings, of positions."""
        return self.module.get_input_embeddings(), self.module.get_output_embeddings()

    def _round_activations(self, emulation: Emulation) -> None:
        for owner in self.module.modules():
            if isinstance(owner, nn.Linear) and (rounded := emulation.activations(table=self._is_table(owner))):
                owner.register_forward_pre_hook(functools.partial(_rounded_input, rounded))


def _head_is_table(module: Any) -> bool:
    """Whether the output projection is the matrix of the embeddings."""
    head = module.get_output_embeddings()
    return head is not None and head.weight is module.get_input_embeddings().weight


def _rounded_input(rounded: Callable, _owner: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    with torch._C.DisableTorchFunction():  # the mode rounds float32 values, also of a model run in float64
        return (rounded(inputs[0].float()).to(inputs[0].dtype), *inputs[1:])


def weights_folder(path: Path) -> Path:
    """``path``, or for a GGUF file the folder of its float32 form, kept in the cache under the file's hash."""
    check(path)
    if path.is_dir():
        return path
    return cached(f"dequantised/{weights_hash(path)[:32]}", lambda folder: _dequantise(path, folder))


def load_module(path: Path) -> Any:
    """The transformers model of a GGUF file or Hugging Face folder, in float32, with PyTorch's fused attention."""
    return _from_pretrained(weights_folder(path))


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
def hooked(hooks: dict[nn.Module, Callable]):
    """Forward hooks on the given modules, before any other, for the time of a ``with`` block."""
    handles = [module.register_forward_hook(hook, prepend=True) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def watching(module: nn.Module, names: Collection[str], see: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Call ``see(name, value)`` for what leaves the named modules, or with ``:in`` enters them."""

    def leaving(name: str) -> Callable:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            see(name, output[0] if isinstance(output, tuple) else output)

        return hook

    def entering(name: str) -> Callable:
        def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            see(name, inputs[0])

        return hook

    handles = []
    for name in names:
        owner = module.get_submodule(name.removesuffix(INPUT))
        if name.endswith(INPUT):
            handles.append(owner.register_forward_pre_hook(entering(name), prepend=True))
        else:
            handles.append(owner.register_forward_hook(leaving(name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _recorder(
    values: list[tuple[str, list[np.ndarray]]], lengths: Sequence[int], keep: Callable[[torch.Tensor], np.ndarray]
) -> Callable[[str, torch.Tensor], None]:
    """Adds to ``values`` what is kept of each sequence of a batch [B, T, ...]."""
    return lambda name, value: values.append(
        (name, [keep(value[row, :length].flatten(1)) for row, length in enumerate(lengths)])
    )


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
