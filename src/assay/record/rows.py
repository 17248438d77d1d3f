"""The rows of a run record. Field names are the interface: index, ledger, page and exporters use the same ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast

#: ok: ran here and was compared here. failed: wrong, or crashed. not_run: this machine cannot. unsupported: the
#: compiler says it cannot.
Status = Literal["ok", "failed", "not_run", "unsupported"]
Direction = Literal["lower", "higher", "none"]
MetricKind = Literal["exact", "counted", "timed"]
SCHEMA = 1


@dataclass(frozen=True)
class CaseKey:
    """What was checked. ``kind`` is op, layer or model; ``shape`` and ``spec`` (hash) may be empty."""

    id: str
    kind: str
    name: str
    target: str
    dtype: str = "f32"
    quant: str = "fp32"
    variant: str = ""
    shape: str = ""
    spec: str = ""


@dataclass(frozen=True)
class Metric:
    """One number with its unit, which way is better, and whether it is exact, counted or timed.

    ``value`` is None where there is no finite number; ``samples`` are the raw measurements behind it.
    """

    name: str
    value: float | None
    unit: str
    direction: Direction = "lower"
    kind: MetricKind = "exact"
    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Result:
    """One check of one case in one run. ``check`` is the test's name; ``seconds`` its wall time."""

    case: CaseKey
    check: str
    status: Status
    reason: str = ""
    executor: str = ""
    artifact: str = ""
    examples: int = 0
    seconds: float = 0.0
    metrics: tuple[Metric, ...] = ()
    run: str = ""

    def metric(self, name: str) -> float | None:
        """Value of a metric, None if this check did not report it."""
        return next((m.value for m in self.metrics if m.name == name), None)


@dataclass(frozen=True)
class Run:
    """The circumstances of a run, written first. ``facts`` holds versions and host facts by name."""

    run: str
    started: str
    commit: str
    base: str
    dirty: bool
    testbed: str
    seed: int
    command: str
    backend: str
    profile: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Note:
    """What a person wants to see of a case beside its numbers, as JSON-ready data under a ``name``."""

    case: CaseKey
    name: str
    data: Any
    run: str = ""


Row = Run | Result | Note
_TYPES = {Run: "run", Result: "result", Note: "note"}


def encode(row: Row) -> dict[str, Any]:
    """A row as JSON-ready data; numbers that are not finite become null."""
    kind = _TYPES[type(row)]
    return {"type": kind, "schema": SCHEMA, **_finite(asdict(row))}


def decode(data: Mapping[str, Any]) -> Row:
    """The inverse of :func:`encode`. Raises ``ValueError`` on an unknown type or schema."""
    fields: dict[str, Any] = {name: value for name, value in data.items() if name not in ("type", "schema")}
    if data.get("schema") != SCHEMA or data.get("type") not in _TYPES.values():
        raise ValueError(
            f"reading a run record: type={data.get('type')!r} schema={data.get('schema')!r}, "
            f"expected run, result or note of schema {SCHEMA}; rerun with this version of assay"
        )
    if data["type"] == "run":
        return Run(**fields)
    if data["type"] == "note":
        return Note(case=CaseKey(**fields.pop("case")), **fields)
    metrics = tuple(_metric(metric) for metric in fields.pop("metrics"))
    return Result(case=CaseKey(**fields.pop("case")), metrics=metrics, **fields)


def _metric(fields: dict[str, Any]) -> Metric:
    samples: tuple[float, ...] = tuple(fields.pop("samples"))
    return Metric(**fields, samples=samples)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast(list[Any], value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value
