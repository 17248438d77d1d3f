"""Attention over caches that are no whole tensor, as PyTorch operators: rings, pages, latents.

A ring of R slots keeps position p in slot p mod R. Pages [N, Hkv, P, D] keep position p of row b in slot p mod P of
page ``table[b, p div P]``. Latents [B, T, R + Dr] are keys, and in their first components values, of every head.
Letters and conventions are those of :mod:`anvil.graph.ops`.
"""

from __future__ import annotations

import torch

from anvil.errors import InputError
from anvil.graph import ops

_LIB = torch.library.Library("anvil", "FRAGMENT")

for _schema in (
    "attention_ring(Tensor q, Tensor k_ring, Tensor v_ring, Tensor past, float scale, SymInt window, float? softcap,"
    " Tensor? k_scale=None, Tensor? v_scale=None) -> Tensor",
    "kv_append_ring(Tensor(a!) ring, Tensor new, Tensor past) -> ()",
    "kv_append_ring_quantised(Tensor(a!) ring, Tensor(b!) scales, Tensor new, Tensor past) -> ()",
    "attention_paged(Tensor q, Tensor k_pages, Tensor v_pages, Tensor table, Tensor past, float scale, SymInt? window,"
    " float? softcap) -> Tensor",
    "kv_append_paged(Tensor(a!) pages, Tensor table, Tensor new, Tensor past) -> ()",
    "attention_latent(Tensor q, Tensor latents, Tensor past, float scale, int width) -> Tensor",
):
    _LIB.define(_schema)


def attention_ring(
    q: torch.Tensor,
    k_ring: torch.Tensor,
    v_ring: torch.Tensor,
    past: torch.Tensor,
    scale: float,
    window: int,
    softcap: float | None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """``attention_cached`` over rings [B, Hkv, R, D] that hold the last R positions up to the newest query's.

    Raises InputError when a key that a query sees may have been overwritten: R < window + S - 1.
    """
    slots, tokens = k_ring.shape[2], q.shape[2]
    if slots < window + tokens - 1:
        raise InputError(
            f"attention over a ring: {slots} slots, window={window}, {tokens} tokens at once; expected at least "
            f"{window + tokens - 1} slots"
        )
    newest = (past + tokens - 1)[:, None]
    position = newest - (newest - torch.arange(slots, device=q.device)) % slots  # [B, R]: what each slot holds
    query = past[:, None] + torch.arange(tokens, device=q.device)
    held = position[:, None, None, :]
    here = query[:, None, :, None]
    visible = (held >= 0) & (held <= here) & (held > here - window)
    used = visible.any(2)[..., None]
    pair = ((k_ring, k_scale), (v_ring, v_scale))
    k, v = (torch.where(used, ops.as_stored(ring, scales, q.dtype), 0.0) for ring, scales in pair)
    return ops.grouped_attention(q, k, v, visible, None, scale, softcap)


def _ring_slots(ring: torch.Tensor, tokens: int, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if tokens > ring.shape[2]:
        raise InputError(
            f"appending to a ring of {ring.shape[2]} slots: {tokens} tokens at once, expected at most that"
        )
    rows = torch.arange(ring.shape[0], device=past.device)[:, None]
    return rows, (past[:, None] + torch.arange(tokens, device=past.device)) % ring.shape[2]


def kv_append_ring(ring: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> None:
    """Write ``new`` [B, Hkv, S, D] to slots ``(past[b] + s) mod R``, in place. Raises InputError for S > R."""
    rows, slots = _ring_slots(ring, new.shape[2], past)
    ring.transpose(1, 2)[rows, slots] = new.transpose(1, 2).to(ring.dtype)


def kv_append_ring_quantised(ring: torch.Tensor, scales: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> None:
    """``kv_append_ring`` to an int8 ring, as :func:`anvil.graph.ops.kv_append_quantised`."""
    codes, scale = ops.quantised_rows(new)
    kv_append_ring(ring, codes, past)
    kv_append_ring(scales[..., None], scale[..., None], past)


def attention_paged(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    table: torch.Tensor,
    past: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """``attention_cached`` over pages [N, Hkv, P, D]; table i64 [B, pages per row]. Unused entries may be anything."""
    used = torch.where((table >= 0) & (table < k_pages.shape[0]), table, 0)
    k, v = (pages[used].transpose(1, 2).flatten(2, 3) for pages in (k_pages, v_pages))  # [B, Hkv, pages * P, D]
    return ops.attention_cached(q, k, v, past, scale, window, softcap)


def kv_append_paged(pages: torch.Tensor, table: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> None:
    """Write ``new`` [B, Hkv, S, D] to the slots of positions ``past[b] + s``, in place."""
    size = pages.shape[2]
    position = past[:, None] + torch.arange(new.shape[2], device=past.device)  # [B, S]
    page = table.gather(1, position // size)
    pages.transpose(1, 2)[page, position % size] = new.transpose(1, 2).to(pages.dtype)


def attention_latent(
    q: torch.Tensor, latents: torch.Tensor, past: torch.Tensor, scale: float, width: int
) -> torch.Tensor:
    """``attention_cached`` of every head over latents [B, T, K]; values are their first ``width`` components."""
    rows = latents[:, None]
    return ops.attention_cached(q, rows, rows[..., :width], past, scale, None, None)


def _like_values(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def _of_width(q: torch.Tensor, latents: torch.Tensor, past: torch.Tensor, scale: float, width: int) -> torch.Tensor:
    return q.new_empty((*q.shape[:-1], width))


def _no_result(*_: object) -> None:
    return None


_IMPLEMENTATIONS = (
    (attention_ring, _like_values),
    (kv_append_ring, _no_result),
    (kv_append_ring_quantised, _no_result),
    (attention_paged, _like_values),
    (kv_append_paged, _no_result),
    (attention_latent, _of_width),
)
for _eager, _fake in _IMPLEMENTATIONS:
    _LIB.impl(_eager.__name__, _eager, "CompositeExplicitAutograd")
    torch.library.register_fake(f"anvil::{_eager.__name__}", _fake, lib=_LIB)
