"""A small run record with a cell of every kind, for tests of what is computed from records."""

from __future__ import annotations

from assay.record import CaseKey, Metric, Note, Result, Row, Run

TARGETS = ("x86_64-avx2", "x86_64-avx512", "aarch64-neon", "riscv64-rvv-vlen128", "riscv64-rvv-vlen256")


def run_row(name: str = "20260101T000000-abcdef") -> Run:
    facts = {
        "cpu": "A CPU & more",
        "cores": 2,
        "os": "Linux Debian 12",
        "python": "3.11.2",
        "toolchain": {"torch": "2.13.0", "numpy": "2.4.6"},
    }
    where = {"commit": "0123abc", "base": "0000abc", "dirty": False, "testbed": "feedbeef0123", "seed": 7}
    what = {"command": "assay validate --model tiny", "backend": "anvil", "profile": "demo", "facts": facts}
    return Run(run=name, started="2026-01-01T00:00:00+00:00", **where, **what)


def result(
    name: str, target: str, headroom: float | None, status="ok", reason="", kind="op", check="test_within_bound"
) -> Result:
    key = CaseKey(f"{name}-f32-{target.replace('-', '_')}", kind, name, target)
    metrics = (Metric("headroom", headroom, "error/bound"),) if headroom is not None else ()
    executor = "" if status == "not_run" else "runner"
    examples = 0 if status in ("not_run", "unsupported") else 80
    return Result(key, check, status, reason, executor, "hash", examples, 0.5, metrics, run_row().run)


def timing(model: str, target: str, status="ok") -> Result:
    values = {
        "ttft_ms": (80.0, "ms"),
        "tpot_ms": (27.0, "ms"),
        "prefill_tok_s": (460.0, "tokens/s"),
        "achieved_gb_s": (20.0, "GB/s"),
        "ceiling_gb_s": (25.0, "GB/s"),
        "ceiling_share": (0.8, ""),
        "weight_bytes": (540e6, "bytes"),
        "peak_rss_bytes": (1.2e9, "bytes"),
        "prefill512_speedup": (1.5, "× eager"),
    }
    samples = tuple(26.0 + (i % 5) for i in range(20))
    metrics = tuple(
        Metric(name, value, unit, kind="timed", samples=samples if name == "tpot_ms" else ())
        for name, (value, unit) in values.items()
    )
    key = CaseKey(f"{model}-f32-{target.replace('-', '_')}", "model", model, target)
    return Result(key, "timing", status, "", "in-process", metrics=metrics, run=run_row().run)


def prompt(index: int, ok: bool = True) -> dict:
    top = [{"id": i, "text": f"word{i}", "logprob": -float(i)} for i in range(5)]
    parting = {"position": 9, "verdict": "real", "margin": 0.5, "got": top, "want": top, "got_id": 1, "want_id": 0}
    return {
        "index": index,
        "prompt": "What is the capital of France?" if index == 0 else f"prompt <{index}>",
        "ok": ok,
        "text": "The capital of France is Paris.",
        "tokens": list(range(64)),
        "equal": 64 if ok else 9,
        "certified": 64,
        "smallest_margin": 0.01,
        "positions": 100,
        "same_top1": 100,
        "logprob_error": 1.2e-5,
        "headroom": 0.012,
        "eager_error": 1.1e-5,
        "triage": None if ok else parting,
    }


def sample_rows() -> list[Row]:
    """Two ops, a layer and a model; one failed, one not run, one unsupported cell, and one that is missing."""
    rows: list[Row] = [run_row()]
    for index, target in enumerate(TARGETS):
        rows.append(result("linear", target, 0.05 + 0.2 * index))
        rows.append(result("decoder_layer", target, 0.3, kind="layer"))
    rows += [
        result("rms_norm", TARGETS[0], 0.0),
        result("rms_norm", TARGETS[1], 1.7, "failed", "outside its bound\n  worst 3.1 ulp"),
        result("rms_norm", TARGETS[2], None, "not_run", "needs qemu-aarch64: apt-get install qemu-user"),
        result("rms_norm", TARGETS[3], None, "unsupported", "no lowering for <this>"),
        result("tiny", TARGETS[0], 0.012, kind="model", check="test_tokens"),
        timing("tiny", TARGETS[0]),
    ]
    model = rows[-1].case
    layers = [{"name": f"layers.{i}", "error": 2e-7 * (i + 1) ** 0.5, "headroom": 0.05} for i in range(30)]
    rows += [
        Note(model, "generation", {"prompt": "Capital of <France>?", "text": "Paris & more"}, run_row().run),
        Note(model, "prompts", [prompt(0), prompt(1, ok=False)], run_row().run),
        Note(model, "layers", {"growth": 0.5, "headroom": 0.05, "first_outside": "", "layers": layers}, run_row().run),
    ]
    return rows
