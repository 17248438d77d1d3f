"""What each mode of one model is worth: right tokens, what it costs, how fast it decodes, how much memory it holds.

Tokens are judged in one process and speed and memory measured in another, so that nothing of the judge's, nor of
compiling, counts as the model's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.measure.resident import Held


@dataclass(frozen=True)
class ModeRow:
    """One mode. ``tokens`` and ``speed`` are what ``assay tokens`` and ``assay generate`` say, empty where that was
    nothing; ``fault`` says what is wrong."""

    quant: str
    tokens: dict[str, Any]
    speed: dict[str, Any]
    fault: str = ""

    @property
    def held(self) -> Held | None:
        """None where the model did not run."""
        if not self.speed:
            return None
        return Held.of(self.speed, self.speed["model_rss_bytes"])

    @property
    def shown(self) -> dict[str, str]:
        """The row of a table. No speed where the tokens are wrong."""
        prompts = self.tokens.get("prompts", [])
        cells = {"mode": self.quant, "equal": f"{sum(p['equal'] for p in prompts)} on {len(prompts)} prompts"}
        cells |= {"certified": str(sum(p["certified"] for p in prompts))} if prompts else {}
        if prompts:
            cells["KL to PyTorch"] = f"{self.tokens['distribution']['kl_mean']:.1e}"
        if cost := self.tokens.get("cost"):
            cells |= {"KL to fp32": f"{cost['kl_mean']:.1e}", "same first choice": f"{cost['same_top1']:.1%}"}
        if (held := self.held) and self.tokens.get("ok"):
            speed, share = self.speed, self.speed["ceiling_share"]
            cells["ms/token"] = f"{speed['tpot_ms']:.0f}"
            cells["GB/s"] = f"{speed['achieved_gb_s']:.1f}"
            cells["of ceiling"] = f"{share:.0%}" if share else "-"
            cells |= {name: f"{value / 1e9:.2f}" for name, value in _gigabytes(held).items()}
        return cells

    def to_dict(self) -> dict[str, Any]:
        return {"quant": self.quant, "fault": self.fault, "tokens": self.tokens, "speed": self.speed}


COLUMNS = (
    *("mode", "equal", "certified", "KL to PyTorch", "KL to fp32", "same first choice", "ms/token", "GB/s"),
    *("of ceiling", "weights GB", "cache GB", "arena GB", "planned GB", "resident GB"),
)


def mode_row(quant: str, about: Sequence[str], judge: Sequence[str], generate: Sequence[str]) -> ModeRow:
    """One mode of a model: ``about`` are the options that both commands take, the others are for one of them."""
    tokens, fault = _run("tokens", "--quant", quant, *about, *judge)
    speed, problem = _run("generate", "--quant", quant, *about, *generate) if not fault else ({}, "")
    row = ModeRow(quant, tokens, speed, fault or problem)
    excess = row.held.fault if row.held else ""
    return row if row.fault or not excess else ModeRow(quant, tokens, speed, f"memory: {excess}")


def _gigabytes(held: Held) -> dict[str, int]:
    return {
        "weights GB": held.weight_bytes,
        "cache GB": held.kv_bytes,
        "arena GB": held.arena_bytes,
        "planned GB": held.planned_bytes,
        "resident GB": held.resident_bytes,
    }


def _run(*command: str) -> tuple[dict[str, Any], str]:
    """What a command of assay prints as JSON, and what it complained of where it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "assay", *command, "--json"], capture_output=True, text=True, check=False
    )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {}
    if done.returncode == 0:
        return said, ""
    _, _, message = done.stderr.rpartition("error: ")
    return said, f"assay {command[0]} ended with exit code {done.returncode}: {message.strip()}"
