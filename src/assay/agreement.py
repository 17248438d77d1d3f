"""Which targets give the same bits, and how far apart the others are: computed from what each of them gave.

Every case is run once on fixed inputs of each of a few kinds (:func:`probes`), the same on all targets. A note of the
run holds the results whole, with a hash of the inputs, so that any two targets can be compared afterwards, also those
of two runs or two machines; nothing is assumed of who agrees with whom.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, prod

import numpy as np
import torch

from assay.case import Example
from assay.formats import FORMATS, Format
from assay.record.rows import Note, Row
from assay.spec import OpSpec

NOTE = "bits"
#: Elements of one stored result, at most, and operations it may cost.
ELEMENTS, COST = 256, 1 << 19
#: Kinds of values probed: the first of the spec's own.
KINDS = 2


def probes(spec: OpSpec) -> list[Example]:
    """One example of each kind of values: the largest sizes whose result is stored whole, and so neither a multiple of
    a vector nor the same on all axes. They depend on the spec alone."""
    shapes = spec.shapes
    dims = {**(shapes.static or ({},))[0], **{name: sizes[-1] for name, sizes in shapes.candidates({}).items()}}
    dims = shapes.shrink_to(dims, COST)
    axes = spec.result.split()
    while prod(dims[axis] for axis in axes if axis in dims) > ELEMENTS:
        shrinkable = [name for name in shapes.free if name in axes and dims[name] > 1]
        if not shrinkable:
            break
        largest = max(shrinkable, key=lambda name: (name != axes[-1], dims[name]))  # a row stays long while it can
        dims = shapes.complete({**shapes.named(dims), largest: dims[largest] // 2})
    return [Example(dims, kind) for kind in spec.values[:KINDS]]


def note(fmt: Format, inputs: Iterable[torch.Tensor], results: Sequence[np.ndarray]) -> dict[str, object]:
    """What a run keeps of a case's probes: JSON-ready."""
    digest = hashlib.sha256()
    for tensor in inputs:
        digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    texts = [base64.b64encode(_narrow(fmt, array).tobytes()).decode() for array in results]
    return {"inputs": digest.hexdigest()[:16], "format": fmt.name, "results": texts}


def _narrow(fmt: Format, array: np.ndarray) -> np.ndarray:
    """float64 values of a narrower type, or integers, in the fewest bytes that hold them exactly."""
    return array.astype(np.float32) if fmt.is_float and fmt.bits <= 24 else array


def _wide(fmt: Format, text: str) -> np.ndarray:
    kind = (np.float32 if fmt.bits <= 24 else np.float64) if fmt.is_float else np.int64
    return np.frombuffer(base64.b64decode(text), kind)


def ulps(fmt: Format, one: np.ndarray, other: np.ndarray) -> float:
    """Largest distance in units of the last place; Inf where one is NaN or infinite and the other differs, and between
    integers that differ. 0 says that all bits but those of NaNs are equal."""
    if one.shape != other.shape:
        return inf
    same = (one == other) & (np.signbit(one) == np.signbit(other)) | (one != one) & (other != other)
    if same.all():
        return 0.0
    a, b = one[~same].astype(np.float64), other[~same].astype(np.float64)
    if not fmt.is_float or not (np.isfinite(a) & np.isfinite(b)).all():
        return inf
    distance = np.abs(a - b) / fmt.ulp(np.maximum(np.abs(a), np.abs(b)))
    return max(float(distance.max()), 0.5)  # +0 and -0 lie in no distance, and are not equal


@dataclass(frozen=True)
class Subject:
    """One op or layer in one variant, type and mode: what is compared between targets."""

    kind: str
    name: str
    variant: str
    dtype: str
    quant: str


@dataclass(frozen=True)
class Agreement:
    """What the targets gave for one subject.

    ``groups``: targets that agree to the bit, the largest group first. ``ulps``: the largest distance between two.
    """

    subject: Subject
    groups: tuple[tuple[str, ...], ...]
    ulps: float
    pairs: tuple[tuple[str, str, float], ...]


def agreements(rows: Iterable[Row]) -> list[Agreement]:
    """Of every subject that at least two targets ran on the same inputs, sorted. The last note of a case counts."""
    latest = {row.case.id: row for row in rows if isinstance(row, Note) and row.name == NOTE}
    found: dict[tuple[Subject, str], dict[str, Note]] = {}
    for row in latest.values():
        case = row.case
        subject = Subject(case.kind, case.name, case.variant, case.dtype, case.quant)
        found.setdefault((subject, row.data["inputs"]), {})[case.target] = row
    ordered = sorted(found.items(), key=lambda item: repr(item[0]))
    return [_agreement(subject, notes) for (subject, _), notes in ordered if len(notes) > 1]


def _agreement(subject: Subject, notes: dict[str, Note]) -> Agreement:
    results = {}
    for target, row in notes.items():
        fmt = FORMATS[row.data["format"]]
        results[target] = fmt, [_wide(fmt, text) for text in row.data["results"]]
    pairs = tuple((a, b, _distance(results[a], results[b])) for a, b in combinations(sorted(results), 2))
    apart = {frozenset((a, b)) for a, b, distance in pairs if distance}
    groups: list[list[str]] = []
    for target in sorted(results):
        group = next((g for g in groups if not any(frozenset((target, other)) in apart for other in g)), None)
        if group is None:
            groups.append([target])
        else:
            group.append(target)
    groups.sort(key=len, reverse=True)
    return Agreement(subject, tuple(map(tuple, groups)), max(distance for *_, distance in pairs), pairs)


def _distance(one: tuple[Format, list[np.ndarray]], other: tuple[Format, list[np.ndarray]]) -> float:
    return max((ulps(one[0], a, b) for a, b in zip(one[1], other[1], strict=True)), default=0.0)


@dataclass(frozen=True)
class Pair:
    """Two targets over all subjects: how many were compared, how many are equal to the bit, the largest distance."""

    one: str
    other: str
    compared: int
    equal: int
    ulps: float
    worst: str


def pairs(table: Iterable[Agreement]) -> Iterator[Pair]:
    """Every pair of targets that has a subject in common, sorted."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for row in table:
        for one, other, distance in row.pairs:
            found.setdefault((one, other), []).append((distance, label(row.subject)))
    for (one, other), seen in sorted(found.items()):
        distance, worst = max(seen)
        equal = sum(not each for each, _ in seen)
        yield Pair(one, other, len(seen), equal, distance, worst if distance else "")


def label(subject: Subject) -> str:
    """``attention_cached-flash f16 w8``: what is as ever is left out."""
    parts = (subject.variant, "" if subject.dtype == "f32" else subject.dtype)
    return "-".join(part for part in (subject.name, *parts, "" if subject.quant == "fp32" else subject.quant) if part)


def distance(value: float) -> str:
    """``equal``, ``1.5 ulp``, or ``NaN, infinity or integer``: what no distance can be given for."""
    return "equal" if not value else "NaN, infinity or integer" if value == inf else f"{value:.3g} ulp"


def summary(table: Sequence[Agreement]) -> str:
    """``334 cases on 16 targets, 40080 comparisons of two: 40050 equal to the bit, the others within 1.5 ulp``."""
    seen = [distance for row in table for *_, distance in row.pairs]
    targets = {target for row in table for group in row.groups for target in group}
    equal = sum(not each for each in seen)
    rest = f", the others apart by at most {distance(max(seen))}" if equal < len(seen) else ""
    return (
        f"{len(table)} cases on {len(targets)} targets, {len(seen)} comparisons of two: {equal} equal to the bit{rest}"
    )
