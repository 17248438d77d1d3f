"""The recorded speeds of models, beside what the machine allows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from assay.record.rows import Result, Row


@dataclass(frozen=True)
class Speed:
    """One model on one target. ``accurate`` is False where a check of the model failed there: then it is hidden."""

    model: str
    target: str
    quant: str
    accurate: bool
    tpot_ms: float
    ttft_ms: float
    itl_ms: tuple[float, ...]
    prefill_tok_s: float
    weight_bytes: float
    peak_rss_bytes: float
    achieved_gb_s: float | None
    ceiling_gb_s: float | None
    share: float | None
    prefill_speedup: float | None

    @property
    def floor_ms(self) -> float | None:
        """The least ms/token that the measured bandwidth allows."""
        return self.weight_bytes / self.ceiling_gb_s * 1e-6 if self.ceiling_gb_s else None


def speeds(rows: Iterable[Row]) -> list[Speed]:
    """The last timing of every model on every target."""
    results = [row for row in rows if isinstance(row, Result) and row.case.kind == "model"]
    wrong = {row.case.id for row in results if row.status == "failed"}
    found = {}
    for row in results:
        if row.check == "timing" and row.metrics:
            found[row.case.id] = _speed(row, row.case.id not in wrong)
    return list(found.values())


def _speed(row: Result, accurate: bool) -> Speed:
    value = {metric.name: metric.value for metric in row.metrics}
    samples = {metric.name: metric.samples for metric in row.metrics}
    speedup = next((v for name, v in value.items() if name.startswith("prefill") and name.endswith("_speedup")), None)
    return Speed(
        model=row.case.name,
        target=row.case.target,
        quant=row.case.quant,
        accurate=accurate,
        tpot_ms=value["tpot_ms"] or float("nan"),
        ttft_ms=value["ttft_ms"] or float("nan"),
        itl_ms=samples["tpot_ms"],
        prefill_tok_s=value["prefill_tok_s"] or float("nan"),
        weight_bytes=value["weight_bytes"] or float("nan"),
        peak_rss_bytes=value["peak_rss_bytes"] or float("nan"),
        achieved_gb_s=value.get("achieved_gb_s"),
        ceiling_gb_s=value.get("ceiling_gb_s"),
        share=value.get("ceiling_share"),
        prefill_speedup=speedup,
    )
