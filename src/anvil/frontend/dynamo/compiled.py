"""A converted graph, compiled when the weights are seen for the first time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from anvil.errors import UnsupportedError
from anvil.frontend.dynamo.graph import Converted, convert
from anvil.frontend.dynamo.options import Options


class CompiledGraph:
    """Takes the list of all arguments of a functional graph, gives the list of its results.

    Weights are packed when first seen, and again whenever one was replaced or changed in place.
    """

    _boxed_call = True  # tells AOTAutograd that arguments come as one list

    def __init__(self, module: GraphModule, weights: Sequence[int], names: Sequence[str], options: Options) -> None:
        self._module, self._weights, self._names, self._options = module, weights, names, options
        self._converted: Converted | None = None
        self._seen: list[Any] | None = None
        self._run: Callable[..., Sequence[torch.Tensor]] | None = None
        self._eager = False

    def __call__(self, arguments: list[Any]) -> list[Any]:
        given = list(arguments)
        arguments.clear()  # the caller hands over ownership
        if not self._eager:
            try:
                return self._compiled(given)
            except UnsupportedError as error:
                if not self._options.fallback:
                    raise
                warnings.warn(f"anvil runs this graph in eager PyTorch: {error}", UserWarning, stacklevel=2)
                self._eager = True
        with torch.no_grad():
            return list(self._module(*given))

    def _compiled(self, given: list[Any]) -> list[Any]:
        if self._converted is None:
            self._converted = convert(self._module, self._weights, self._names)
        converted = self._converted
        outputs: Sequence[torch.Tensor] = ()
        if converted.program.module.graph.output_node().args[0]:
            run = self._with_weights({name: given[i] for name, i in converted.params.items()})
            outputs = run(*(given[i].detach() for i in converted.inputs), threads=self._options.threads)
        return converted.results(given, outputs)

    def _with_weights(self, weights: dict[str, torch.Tensor]) -> Callable[..., Sequence[torch.Tensor]]:
        state = [(weight.data_ptr(), weight._version) for weight in weights.values()]
        if self._run is None or state != self._seen:
            from anvil.api import compile_program  # here, so that the frontend alone does not load the code generator

            program = self._converted.program
            params = {name: weight.detach() for name, weight in weights.items()} | program.params
            options = self._options
            self._run = compile_program(
                replace(program, params=params), options.target, quant=options.quant, attention=options.attention
            )
            self._seen = state
        return self._run
