"""How two goldens of one model differ, in numbers and in words."""

from __future__ import annotations

import numpy as np

from assay.tokens.golden import Golden


def difference(old: Golden, new: Golden) -> list[str]:
    """What moved from ``old`` to ``new``, one line each, with the provenance that changed; empty when nothing did."""
    before, after = old.tensors(), new.tensors()
    lines = [f"{name}: gone" for name in sorted(before.keys() - after.keys())]
    lines += [f"{name}: new" for name in sorted(after.keys() - before.keys())]
    lines += [
        f"p{index:02}.text: {p.text!r} -> {q.text!r}"
        for index, (p, q) in enumerate(zip(old.prompts, new.prompts, strict=False))
        if p.text != q.text
    ]
    moved: dict[str, int] = {}
    for name in sorted(before.keys() & after.keys()):
        a, b = before[name], after[name]
        if a.shape != b.shape:
            lines.append(f"{name}: shape {a.shape} -> {b.shape}")
        elif a.dtype == np.float32:
            if distance := int(ulps(a, b).max(initial=0)):
                moved[name] = distance
        elif (places := np.argwhere(a != b)).size:
            lines.append(f"{name}: {len(places)} of {a.size} differ, first at {tuple(places[0].tolist())}")
    if moved:
        worst = max(moved, key=lambda name: moved[name])
        lines.append(f"at most {moved[worst]} ulp in {len(moved)} of {len(before)} tensors, worst {worst}")
    if lines:
        lines += [
            f"{key} {old.provenance.get(key)} -> {value}"
            for key, value in new.provenance.items()
            if old.provenance.get(key) != value
        ]
    return lines


def ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of float32 arrays of one shape in units of the last place: representable numbers between them."""

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(ordered(a) - ordered(b))
