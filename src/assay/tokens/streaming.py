"""A model too large for memory, run by PyTorch all the same: no more than one module's weights exist at a time.

The module is built without weights. Before a module that owns parameters runs, they are read and put in their place,
and afterwards dropped. All sequences go through in one batch, so that a pass reads every weight once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open
from torch import nn

from assay.errors import WeightsError
from assay.tokens.synthetic import ON_DEMAND, drawn

Read = Callable[[str], torch.Tensor]
INDEX = "model.safetensors.index.json"


class FolderWeights:
    """The tensors of a Hugging Face folder by name, read from mapped files, or drawn, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._files = {file.name: safe_open(file, framework="pt") for file in sorted(folder.glob("*.safetensors"))}
        self._folder = folder
        self._drawn = drawn(folder)
        index = folder / INDEX
        if self._drawn is not None:
            self._where: dict[str, str] = dict.fromkeys(json.loads((folder / ON_DEMAND).read_text())["tensors"], "")
        elif index.is_file():
            self._where = json.loads(index.read_text())["weight_map"]
        else:
            self._where = {name: file for file, opened in self._files.items() for name in opened.keys()}  # noqa: SIM118

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __call__(self, name: str) -> torch.Tensor:
        """Raises :class:`WeightsError` when the folder lacks the tensor."""
        if name not in self._where:
            raise WeightsError(
                f"reading weights={self._folder}: no tensor {name}; expected the names of the model's own parameters"
            )
        if self._drawn is not None:
            return torch.from_numpy(self._drawn(name))
        return self._files[self._where[name]].get_tensor(name)


def blank_module(folder: Path) -> Any:
    """The transformers model of a folder's config.json with parameters that have a shape and no memory.

    Buffers (rotary tables) are computed as always.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    with _without_memory():
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    return module.eval().requires_grad_(False)


@contextmanager
def _without_memory() -> Iterator[None]:
    """Every parameter registered in the ``with`` block becomes a shape without memory."""
    register = nn.Module.register_parameter

    def register_blank(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device.type != "meta":  # a blank one is tied to another: the same object stays
            param = nn.Parameter(param.to("meta"), requires_grad=False)
        register(self, name, param)

    with mock.patch.object(nn.Module, "register_parameter", register_blank):
        yield


def stream(module: nn.Module, read: Callable[[nn.Module, str], torch.Tensor]) -> None:
    """Make a blank ``module`` read each parameter before use and drop it afterwards.

    ``read(owner, name)`` gives the value of the parameter called ``name`` in the whole module.
    """
    for path, owner in module.named_modules():
        blanks = dict(owner._parameters)
        if any(blank is not None for blank in blanks.values()):
            owner.register_forward_pre_hook(_fill(path, blanks, read))
            owner.register_forward_hook(_drop(blanks), always_call=True)


def _fill(path: str, blanks: dict[str, nn.Parameter | None], read: Callable) -> Callable:
    def hook(owner: nn.Module, _inputs: Any) -> None:
        for name, blank in blanks.items():
            if blank is not None:
                value = read(owner, f"{path}.{name}" if path else name)
                owner._parameters[name] = nn.Parameter(value, requires_grad=False)

    return hook


def _drop(blanks: dict[str, nn.Parameter | None]) -> Callable:
    def hook(owner: nn.Module, _inputs: Any, _output: Any) -> None:
        owner._parameters.update(blanks)

    return hook


def names_of_tied(module: nn.Module) -> dict[str, list[str]]:
    """For every parameter name the names of all parameters that are the same one."""
    groups: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return {name: group for group in groups.values() for name in group}
