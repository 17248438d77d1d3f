"""Results of the full-model stage as plain data: for JSON on the command line, and for the run record."""

from __future__ import annotations

from typing import Any

from assay.tokens.judge import Triage
from assay.tokens.layers import LayerReport
from assay.tokens.local import LocalReport
from assay.tokens.stage import Distribution, PromptResult


def prompt_data(result: PromptResult) -> dict[str, Any]:
    """One prompt's result as JSON-ready data."""
    return {
        "index": result.index,
        "prompt": result.prompt,
        "ok": result.ok,
        "text": result.text,
        "tokens": list(result.free.tokens),
        "equal": result.free.equal,
        "certified": result.free.certified,
        "smallest_margin": result.free.smallest_margin,
        "positions": result.forced.positions,
        "same_top1": result.forced.same_top1,
        "logprob_error": result.forced.max_error,
        "headroom": result.forced.headroom,
        "eager_error": result.eager_error if result.eager_error == result.eager_error else None,
        "triage": triage_data(result.free.triage) if result.free.triage else None,
    }


def triage_data(triage: Triage) -> dict[str, Any]:
    """The parting of two runs as JSON-ready data."""

    def pairs(choices: tuple) -> list[dict[str, Any]]:
        return [{"id": c.id, "text": c.text, "logprob": c.logprob} for c in choices]

    return {
        "position": triage.position,
        "verdict": triage.verdict,
        "margin": triage.margin,
        "got": pairs(triage.got_top),
        "want": pairs(triage.want_top),
        "got_id": triage.got.id,
        "want_id": triage.want.id,
    }


def distribution_data(spread: Distribution) -> dict[str, Any]:
    """A divergence as JSON-ready data."""
    names = ("positions", "kl_mean", "kl_p999", "same_top1", "ok")
    return {name: getattr(spread, name) for name in names}


def layers_data(report: LayerReport) -> dict[str, Any]:
    """Error along the residual stream as JSON-ready data."""
    return {
        "growth": report.growth if report.growth == report.growth else None,
        "headroom": report.headroom,
        "first_outside": report.first_outside,
        "layers": [{"name": each.name, "error": each.error, "headroom": each.headroom} for each in report.layers],
    }


def local_data(report: LocalReport) -> dict[str, Any]:
    """Error of every module on its own input as JSON-ready data."""
    outside = report.first_outside
    return {
        "positions": report.positions,
        "headroom": report.worst.headroom,
        "first_outside": outside.point if outside else "",
        "points": [{"name": each.point, "error": each.error, "headroom": each.headroom} for each in report.points],
    }
