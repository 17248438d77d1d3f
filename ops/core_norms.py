"""Normalisation by statistics of a row, a group, a channel or a batch, and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from assay import bounds
from assay.bounds import Setting, root
from assay.overloads.spec import Form, Given, Overload

EPS = 1e-5
SOME = {axis: (1, 2, 3, 7, 16, 17, 33) for axis in "MNK"}  # of nothing there is no mean


def statistics(x: np.ndarray, axes: tuple[int, ...], eps: float = EPS) -> tuple[np.ndarray, np.ndarray]:
    """Mean and 1/√(variance + eps) over ``axes``, which stay."""
    mean = x.mean(axes, keepdims=True)
    return mean, 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + eps)


def affine(x: np.ndarray, w: Any, b: Any, shape: tuple[int, ...]) -> np.ndarray:
    return x * (1 if w is None else w.reshape(shape)) + (0 if b is None else b.reshape(shape))


def layer(x, w=None, b=None):
    mean, rstd = statistics(x, (-1,))
    return affine((x - mean) * rstd, w, b, (-1,)), mean, rstd


def grouped(x: np.ndarray) -> np.ndarray:
    """x [N, 4, *] as two groups of two channels, [N, 2, rest]."""
    return x.reshape(x.shape[0], 2, 2 * int(np.prod(x.shape[2:])))


def group(x, w=None, b=None):
    mean, rstd = statistics(grouped(x), (-1,))
    normed = ((grouped(x) - mean) * rstd).reshape(x.shape)
    return affine(normed, w, b, channels(x)), mean[..., 0], rstd[..., 0]


def channels(x: np.ndarray) -> tuple[int, ...]:
    return (1, -1, *[1] * (x.ndim - 2))


def batch(x, w, b):
    axes = tuple(dim for dim in range(x.ndim) if dim != 1)
    mean, rstd = statistics(x, axes)
    return affine((x - mean) * rstd, w, b, channels(x)), mean.ravel(), rstd.ravel()


def given(x, w, b, mean, variance):
    shape = channels(x)
    return affine((x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + EPS), w, b, shape)


def root_mean_square(x, w=None):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 if w is None else w)


def statistics_bound(golden: Callable[..., Any], spread: Callable[..., Any]) -> Callable[..., Any]:
    """Of (result, mean, rstd): (c√N + 8)·u_acc of (|x| + mean|x|)·rstd·|w| + |b|, of mean|x|, and of rstd, where what
    is centred was rounded in units of the mean; ``spread`` gives |x| + mean|x|, mean|x| and N."""

    def bound(setting: Setting, want, x, *rest):
        result, mean, rstd = golden(x, *rest)
        size, average, count = spread(x)
        relative = (root(count) + 8) * setting.acc.u
        absolute = [None if r is None else np.abs(r) for r in rest]
        w, b = (*absolute, None, None)[:2]
        shape = (-1,) if golden is layer else channels(x)
        wide = np.broadcast_to(grouped_like(rstd, x, golden), x.shape)
        most = affine(size * wide, w, b, shape)
        lost = 1 + average * np.abs(rstd)
        return (
            np.asarray(setting.rounding(result) + relative * most * lost.max(initial=1), np.float64),
            np.asarray(setting.rounding(mean) + relative * average, np.float64),
            np.asarray(setting.rounding(rstd) + relative * np.abs(rstd) * lost, np.float64),
        )

    return bound


def grouped_like(rstd: np.ndarray, x: np.ndarray, golden: Any) -> np.ndarray:
    """rstd in a shape that broadcasts with x."""
    if golden is group:
        return np.repeat(rstd, 2, 1).reshape(x.shape[0], 4, *[1] * (x.ndim - 2))
    return rstd.reshape(channels(x)) if golden is batch else rstd


def row_spread(x):
    average = np.abs(x).mean(-1, keepdims=True)
    return np.abs(x) + average, average, x.shape[-1]


def group_spread(x):
    average = np.abs(grouped(x)).mean(-1, keepdims=True)
    return (np.abs(grouped(x)) + average).reshape(x.shape), average[..., 0], grouped(x).shape[-1]


def batch_spread(x):
    axes = tuple(dim for dim in range(x.ndim) if dim != 1)
    average = np.abs(x).mean(axes, keepdims=True)
    return np.abs(x) + average, average.ravel(), x.size // x.shape[1]


def first(function: Callable[..., Any]) -> Callable[..., Any]:
    """The result alone."""
    return lambda *arguments: function(*arguments)[0]


def given_bound(setting: Setting, want, x, w, b, mean, variance) -> np.ndarray:
    """Eight roundings of the sizes that are added."""
    shape = channels(x)
    size = (np.abs(x) + np.abs(mean.reshape(shape))) / np.sqrt(variance.reshape(shape) + EPS)
    most = affine(size, np.abs(w), np.abs(b), shape)
    return np.asarray(setting.rounding(want) + 8 * setting.acc.u * most, np.float64)


def rms_bound(setting: Setting, want, x, w=None) -> np.ndarray:
    relative = (root(x.shape[-1]) / 2 + 6) * setting.acc.u
    return np.asarray(setting.rounding(want) + relative * np.abs(want) + setting.eta, np.float64)


def softmax(x, dim, *rest):
    shifted = np.exp(x - x.max(dim, keepdims=True))
    return shifted / shifted.sum(dim, keepdims=True)


def log_softmax(x, dim, *rest):
    shifted = x - x.max(dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))


def softmax_bound(setting: Setting, want, x, dim, *rest) -> np.ndarray:
    turned = bounds.softmax(setting, np.moveaxis(want, dim, -1), np.moveaxis(x, dim, -1))
    return np.moveaxis(turned, -1, dim)


def log_softmax_bound(setting: Setting, want, x, dim, *rest) -> np.ndarray:
    """One rounding of |x - max| and of the difference, and (2δ + c√N + 8)·u_acc in the logarithm's argument, where δ,
    the largest |x - max| that counts, is at most 60."""
    absolute = (2 * 60 + root(x.shape[dim]) + 8) * setting.acc.u
    shift = np.abs(x - x.max(dim, keepdims=True))
    return np.asarray(setting.rounding(want) + 4 * setting.acc.u * (np.abs(want) + shift) + absolute, np.float64)


def positive(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A variance."""
    return torch.from_numpy(np.asarray(rng.uniform(0.25, 4, shape))).to(dtype)


def tensors(axes: str) -> tuple[Given, ...]:
    return tuple(map(Given, axes.split("|")))


def forms(*axes: str) -> tuple[Form, ...]:
    return tuple(Form(item, tensors(item)) for item in axes)


LAYER = {"bound": statistics_bound(layer, row_spread), "kinds": ("ordinary", "positive"), "sizes": SOME}
GROUP = {"bound": statistics_bound(group, group_spread), "kinds": ("ordinary", "positive"), "sizes": SOME}
BATCH = {"bound": statistics_bound(batch, batch_spread), "kinds": ("ordinary", "positive"), "sizes": SOME}
GIVEN = {"bound": given_bound, "kinds": ("ordinary",)}
SHARES = {"kinds": ("ordinary",), "sizes": SOME, "bound": softmax_bound}
LOGS = {"kinds": ("ordinary",), "sizes": SOME, "bound": log_softmax_bound}
STATISTICS = (Form("of channels", (*tensors("M 4 N|4|4|4"), Given("4", fill=positive))),)
ALONG = tuple(Form(f"along {dim}", (Given(),), (dim,)) for dim in (-1, 0))


def only(bound: Callable[..., Any]) -> Callable[..., Any]:
    return lambda setting, want, *operands: bound(setting, want, *operands)[0]


OVERLOADS = (
    Overload(
        "aten.native_layer_norm.default",
        layer,
        forms("M N|N|N", "2 M N|N|N"),
        call=lambda op, x, w, b: op(x, [x.shape[-1]], w, b, EPS),
        **LAYER,
    ),
    Overload(
        "aten.layer_norm.default",
        first(layer),
        forms("M N|N|N", "M N"),
        call=lambda op, x, w=None, b=None: op(x, [x.shape[-1]], w, b, EPS),
        **{**LAYER, "bound": only(LAYER["bound"])},
    ),
    Overload(
        "aten.rms_norm.default",
        root_mean_square,
        forms("M N|N", "2 M N"),
        call=lambda op, x, w=None: op(x, [x.shape[-1]], w, EPS),
        bound=rms_bound,
        kinds=("ordinary", "positive"),
        sizes=SOME,
    ),
    Overload(
        "aten.native_group_norm.default",
        group,
        forms("M 4 N|4|4"),
        call=lambda op, x, w, b: op(*(t.contiguous() for t in (x, w, b)), x.shape[0], 4, x.shape[2], 2, EPS),
        **GROUP,
    ),
    Overload(
        "aten.group_norm.default",
        first(group),
        forms("M 4 N|4|4", "M 4 3 N"),
        call=lambda op, x, w=None, b=None: op(x, 2, w, b, EPS),
        **{**GROUP, "bound": only(GROUP["bound"])},
    ),
    Overload(
        "aten._native_batch_norm_legit.no_stats",
        batch,
        forms("M 4 N|4|4"),
        call=lambda op, x, w, b: op(x, w, b, True, 0.1, EPS),
        **BATCH,
    ),
    Overload(
        "aten._native_batch_norm_legit_no_training.default",
        given,
        STATISTICS,
        call=lambda op, *arguments: op(*arguments, 0.1, EPS)[0],
        **GIVEN,
    ),
    Overload(
        "aten.batch_norm.default",
        given,
        STATISTICS,
        call=lambda op, *arguments: op(*arguments, False, 0.1, EPS, False),
        **GIVEN,
    ),
    Overload("aten._softmax.default", softmax, ALONG, call=lambda op, x, dim: op(x, dim, False), **SHARES),
    Overload("aten._log_softmax.default", log_softmax, ALONG, call=lambda op, x, dim: op(x, dim, False), **LOGS),
    Overload("aten.softmax.int", softmax, (*ALONG, Form("as f32", (Given(),), (-1, torch.float32))), **SHARES),
    Overload("aten.log_softmax.int", log_softmax, (*ALONG, Form("as f32", (Given(),), (-1, torch.float32))), **LOGS),
)
