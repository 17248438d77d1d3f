"""A model of transformers without its weights: what capture reads, whatever the weights weigh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from anvil.errors import WeightsError
from anvil.models.assemble import quiet_transformers


def typed_config(settings: Mapping[str, Any]) -> Any:
    """The configuration object of ``settings``, the keys of a config.json. Raises :class:`WeightsError`."""
    kind = settings.get("model_type")
    if not kind:
        raise WeightsError("reading a configuration: it has no model_type, expected e.g. 'llama'")
    with quiet_transformers() as transformers:
        if kind not in transformers.CONFIG_MAPPING:
            raise WeightsError(f"reading a configuration: model_type={kind} is not one transformers knows")
        try:
            return transformers.CONFIG_MAPPING[kind].from_dict(dict(settings))
        except Exception as error:  # checks of the configuration raise errors of many kinds
            raise WeightsError(f"reading a configuration of model_type={kind}: {error}") from error


def skeleton(config: Any) -> torch.nn.Module:
    """The causal language model of ``config`` in float32: parameters are shapes only, buffers are computed."""
    with quiet_transformers() as transformers, _parameters_without_memory():
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    module.tie_weights()
    return module.eval().requires_grad_(False)


@contextmanager
def _parameters_without_memory() -> Iterator[None]:
    """Parameters that modules register meanwhile become fake tensors of the CPU, which hold no numbers."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    register = torch.nn.Module.register_parameter

    def without_memory(self: torch.nn.Module, name: str, param: torch.nn.Parameter | None) -> None:
        if param is not None and not isinstance(param, FakeTensor):
            fake = FakeTensor(mode, torch.empty_like(param, device="meta"), torch.device("cpu"))
            param = torch.nn.Parameter(fake, requires_grad=False)
        register(self, name, param)

    torch.nn.Module.register_parameter = without_memory
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register
