"""What a finished check has to say, as plain data that crosses process borders: the controller makes a row of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from assay.case import Case
from assay.judge import Judge
from assay.record.rows import CaseKey


def key_of(case: Case, shape: str = "") -> CaseKey:
    spec = case.spec
    names = (case.id, spec.kind, spec.name, case.target, case.format.name, case.quant, case.variant)
    return CaseKey(*names, shape, spec.digest)


def facts(judge: Judge, status: str, reason: str) -> dict[str, Any]:
    """What the controller needs for one result row, as plain data that crosses process borders."""
    tally, subject, shape = judge.tally, judge.subject, judge.replayed.suffix(judge.spec) if judge.replayed else ""
    worst = (tally.worst.suffix(judge.spec), tally.worst.code) if tally.worst else ("", "")
    return {
        "case": asdict(key_of(judge.case, shape)),
        "status": status,
        "reason": reason,
        "executor": subject.status.executor,
        "artifact": subject.artifact,
        "examples": tally.examples,
        "headroom": float(tally.headroom) if tally.examples else None,
        "ulps": float(tally.ulps) if tally.examples else None,
        "worst": list(worst),
        "notes": tally.notes,
    }
