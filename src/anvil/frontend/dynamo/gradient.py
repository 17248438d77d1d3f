"""Gradients through a compiled graph: the backward pass runs the graph again in eager PyTorch and differentiates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _RecomputedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compiled: Callable[..., Any], eager: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        ctx.eager = eager
        ctx.constants = [None if isinstance(argument, torch.Tensor) else argument for argument in arguments]
        ctx.save_for_backward(*(argument for argument in arguments if isinstance(argument, torch.Tensor)))
        results = tuple(compiled(*arguments))
        whole = [result for result in results if isinstance(result, torch.Tensor) and not result.is_floating_point()]
        ctx.mark_non_differentiable(*whole)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        needed = ctx.needs_input_grad[2:]
        arguments = [
            next(saved).detach().requires_grad_(need) if constant is None else constant
            for constant, need in zip(ctx.constants, needed, strict=True)
        ]
        with torch.enable_grad():
            results = ctx.eager(*arguments)
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, gradients, strict=True)
            if isinstance(result, torch.Tensor) and result.requires_grad and gradient is not None
        ]
        wanted = [argument for argument, need in zip(arguments, needed, strict=True) if need]
        found = iter(torch.autograd.grad([r for r, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return (None, None, *(next(found) if need else None for need in needed))


def with_gradient(compiled: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """``compiled``, with the gradient of ``eager``, which computes the same."""

    def call(*arguments: Any) -> tuple[Any, ...]:
        return _RecomputedGradient.apply(compiled, eager, *arguments)

    return call
