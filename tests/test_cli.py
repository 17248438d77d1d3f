"""The command line: what it prints, and one clear message with a documented exit code for whatever goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from known_ceiling import known_ceiling
from sample_records import TARGETS, sample_rows
from sqlalchemy import create_engine, text
from typer.testing import CliRunner, Result

from assay.backends.protocol import Finding, NotRunHere, Unsupported
from assay.cli import app, common, errors
from assay.cli.tokens import indices
from assay.errors import UsageError
from assay.measure import ceiling
from assay.record import Writer
from assay.tokens import registry, session, source
from assay.tokens.golden import load_golden
from assay.tokens.tokenizer import load_tokenizer

EAGER = ("--backend", "torch_eager")
TINY = ("--model", "llama-tiny", *EAGER)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def complaint(result: Result, code: int) -> str:
    """The one message of a failed command; there must be no traceback."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stderr.count("error:") == 1
    return result.stderr


@pytest.fixture
def records(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "records" / "sample.jsonl")
    for row in sample_rows():
        writer.write(row)
    writer.close()
    return tmp_path / "records"


@pytest.fixture
def quick_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    known_ceiling(monkeypatch, read_gb_s=25.0)


def test_targets_lists_every_target_with_how_it_runs() -> None:
    listed = json.loads(run("targets", "--json").stdout)
    assert {"x86_64-avx2", "x86_64-avx512", "aarch64-neon"} <= {target["name"] for target in listed}
    assert all(target["executor"] if target["runs"] else target["reason"] for target in listed)


@pytest.mark.usefixtures("quick_ceiling")
def test_generate_prints_json_and_nothing_else() -> None:
    result = run("generate", *TINY, "--prompt", "What is the capital of France?", "--max-new-tokens", "8", "--json")
    data = json.loads(result.stdout)
    golden = registry.golden_path(registry.model("llama-tiny"))
    assert data["tokens"] == load_golden(golden).prompts[0].new_ids[:8]
    for name in ("text", "ttft_ms", "tpot_ms", "prefill_tok_s", "decode_tok_s", "weight_bytes", "peak_rss_bytes"):
        assert data[name], name
    assert data["achieved_gb_s"] > 0 and data["ceiling_gb_s"] == 25.0


def test_a_speed_above_the_ceiling_is_put_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    known_ceiling(monkeypatch, read_gb_s=1e-6)
    monkeypatch.setattr(session, "last_level_cache", lambda: 0)
    result = run("generate", *TINY, "--prompt", "x", "--max-new-tokens", "4", "--json")
    data = json.loads(result.stdout)
    assert "above the measured ceiling" in data["doubt"] and data["ceiling_share"] is None


@pytest.mark.usefixtures("quick_ceiling")
def test_generate_streams_text_and_says_how_fast() -> None:
    result = run("generate", *TINY, "--prompt", "anvil", "--raw", "--max-new-tokens", "6")
    assert result.exit_code == 0
    assert "6 tokens at" in result.stderr and "ceiling 25.0 GB/s measured" in result.stderr
    assert len(result.stdout.strip()) > 0


@pytest.mark.usefixtures("quick_ceiling")
def test_generate_draws_tokens_and_a_seed_repeats_them() -> None:
    ask = ("generate", *TINY, "--prompt", "anvil", "--raw", "--max-new-tokens", "12", "--json", "--temperature", "1.5")
    first, again, other = (json.loads(run(*ask, "--seed", seed).stdout)["tokens"] for seed in ("1", "1", "2"))
    assert first == again != other


def test_generate_answers_several_prompts_each_as_alone() -> None:
    ask = ("generate", *TINY, "--raw", "--max-new-tokens", "8", "--prompt", "anvil", "--prompt", "0123456789")
    pairs = json.loads(run(*ask, "--json").stdout)["answers"]
    golden = load_golden(registry.golden_path(registry.model("llama-tiny")))
    tokenizer = load_tokenizer(source.resolve(registry.model("llama-tiny")))
    assert [pair["prompt"] for pair in pairs] == ["anvil", "0123456789"]
    assert [pair["text"] for pair in pairs] == [tokenizer.decode(golden.prompts[i].new_ids[:8]) for i in (2, 3)]
    assert run(*ask).stdout.startswith("> anvil\n")


def test_tokens_passes_for_pytorch_itself_and_shows_each_prompt() -> None:
    result = run("tokens", *TINY, "--prompts", "0,7", "--new-tokens", "4", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["ok"]
    assert [prompt["index"] for prompt in data["prompts"]] == [0, 7]
    assert data["prompts"][0]["equal"] == 4
    assert data["layers"]["first_outside"] == ""
    assert "growing as depth" in run("tokens", *TINY, "--prompts", "7", "--new-tokens", "2").stdout


def test_tokens_fails_with_code_1_and_a_triage_when_a_model_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.backends._torch_model import TorchModel

    honest = TorchModel.decode
    monkeypatch.setattr(TorchModel, "decode", lambda self, token: (honest(self, token) + 1) % 256)
    message = complaint(run("tokens", *TINY, "--prompts", "0", "--new-tokens", "4", "--no-layers"), 1)
    assert "token 1: got" in message and "real" in message


def test_ledger_as_json_and_as_table(records: Path) -> None:
    rows = json.loads(run("ledger", "--records", str(records), "--json").stdout)
    cells = {(row["name"], row["target"]): row["status"] for row in rows if row["quant"] == "fp32"}
    assert {row["status"] for row in rows} == {"ok", "failed", "unsupported", "not_run"}
    assert all(row["reason"] for row in rows if row["status"] != "ok")
    assert cells["rms_norm", TARGETS[1]] == "failed" and cells["linear", TARGETS[4]] == "ok"
    assert set(rows[0]) >= {"kind", "name", "target", "dtype", "quant", "variant", "status", "examples", "worst"}
    recorded = json.loads(run("ledger", "--records", str(records), "--json", "--recorded").stdout)
    assert len(recorded) < len(rows)
    shown = run("ledger", "--records", str(records)).stdout
    assert "decoder_layer" in shown and "meaningful cells ok" in shown


def test_report_writes_where_it_says(records: Path, tmp_path: Path) -> None:
    result = run("report", "--records", str(records), "--out", str(tmp_path / "deep" / "page.html"))
    assert result.stdout.strip() == str(tmp_path / "deep" / "page.html")
    assert "<!doctype html>" in (tmp_path / "deep" / "page.html").read_text()


def test_index_can_be_rebuilt_over_itself(records: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'i.db'}"
    for _ in range(2):
        assert run("index", "--records", str(records), "--db", url).exit_code == 0
    with create_engine(url).connect() as connection:
        failed = connection.execute(text("select name, target from results where status = 'failed'")).all()
        headrooms = connection.execute(
            text("select count(*) from metrics join results using (result) where metrics.name = 'headroom'")
        ).scalar()
    assert failed == [("rms_norm", TARGETS[1])]
    assert headrooms == 13


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("generate", "--model", "gpt-9", "--prompt", "x"), 2, "unknown model='gpt-9'; known: "),
        (("generate", *TINY, "--prompt", "x", "--target", "vax"), 2, "unknown target='vax'; known: host"),
        (("generate", *TINY, "--prompt", "x", "--quant", "w3"), 2, "unknown quant='w3'"),
        (
            ("generate", *TINY, "--prompt", "x", "--temperature", "-1"),
            2,
            "temperature=-1.0: expected 0 (greedy) or more",
        ),
        (("generate", *TINY, "--prompt", "x", "--top-k", "-1"), 2, "top_k=-1: expected 0 (all)"),
        (("generate", *TINY, "--prompt", "x", "--top-p", "0"), 2, "top_p=0.0: expected more than 0"),
        (("generate", *TINY, "--prompt", "x", "--min-p", "2"), 2, "min_p=2.0: expected 0 (all) to 1"),
        (("generate", *TINY, "--prompt", "x", "--repetition-penalty", "0"), 2, "expected more than 0; 1 is none"),
        (("generate", *TINY, "--prompt", "x" * 300), 2, "max_new_tokens=64 is more than context=256"),
        (("generate", *TINY, "--prompt", "x" * 300, "--window", "9"), 2, "tokens, expected at most context=256"),
        (("generate", *TINY, "--prompt", "x", "--window", "256"), 2, "window=256, expected 1 to 255"),
        (("generate", *TINY, "--prompt", "x", "--prompt", "y", "--window", "9"), 2, "with 2 prompts: expected one"),
        (("generate", *TINY, "--prompt", "", "--raw"), 2, "the prompt is empty"),
        (("generate", "--model", "llama-tiny", "--prompt", "x", "--backend", "gcc"), 2, "name='gcc'"),
        (("tokens", *TINY, "--prompts", "0,99"), 2, "index 99 is not among 0, 1, 2, 3, 4, 5, 6, 7"),
        (("tokens", *TINY, "--prompts", "first"), 2, "expected indices such as 0,3"),
        (("tokens", *TINY, "--new-tokens", "65"), 2, "expected at most 64"),
        (("ledger", "--records", "nowhere"), 2, "none in records=nowhere"),
        (("report", "--records", "nowhere"), 2, "none in records=nowhere"),
        (("validate", *TINY, "--profile", "lazy"), 2, "unknown profile='lazy'; known: demo, quick, ci, deep"),
        (("generate", *TINY, "--prompt", "x", "--weights", "/no/such.gguf"), 3, "no such file or folder"),
    ],
)
def test_what_cannot_be_used_gets_one_message_and_its_code(
    arguments: tuple[str, ...], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in complaint(run(*arguments), code)


def test_a_missing_option_is_usage() -> None:
    assert run("generate", "--model", "llama-tiny").exit_code == 2


@pytest.mark.parametrize("keep", [0, 100, 1 << 20, -1])
def test_a_truncated_gguf_is_refused(tmp_path: Path, keep: int) -> None:
    whole = source.resolve(registry.model("smollm2-135m"))
    cut = tmp_path / "model.gguf"
    with whole.open("rb") as stream:
        cut.write_bytes(stream.read(keep) if keep >= 0 else stream.read()[:-1000])
    message = complaint(run("generate", *TINY, "--prompt", "x", "--weights", str(cut)), 3)
    assert str(cut) in message and "fetch it again" in message


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"no *.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: os.truncate(folder / "model.safetensors", 100), "cut short inside its header"),
        (lambda folder: os.truncate(folder / "model.safetensors", 1_000_000), "expected 1392192"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b"notjson!"), "not JSON"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "b.safetensors"}}'
            ),
            "shard b.safetensors is missing",
        ),
    ],
)
def test_a_spoilt_folder_is_refused(tmp_path: Path, spoil, words: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(source.resolve(registry.model("llama-tiny")), folder)
    spoil(folder)
    assert words in complaint(run("generate", *TINY, "--prompt", "x", "--weights", str(folder)), 3)


def test_weights_that_are_not_the_goldens_are_refused_before_they_are_compiled(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(source.resolve(registry.model("llama-tiny")), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-4}))
    assert "of other weights" in complaint(run("tokens", *TINY, "--weights", str(folder)), 3)


def test_a_target_without_its_emulator_is_a_missing_tool(tmp_path: Path) -> None:
    """In a process of its own: what is installed is looked up once per process."""
    command = [sys.executable, "-m", "assay", "generate", "--model", "llama-tiny", "--prompt", "x"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [*command, "--target", "riscv64-rvv"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert "needs qemu-riscv64: apt-get install qemu-user" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("quick_ceiling")
def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "file" / "cache"))
    result = run("generate", *TINY, "--prompt", "x", "--max-new-tokens", "2")
    assert result.exit_code == 0
    assert result.stderr.count("warning:") == 1 and "going on without it" in result.stderr


def test_a_full_disk_while_recording_has_its_own_code(tmp_path: Path) -> None:
    """A limit on file size stands for the full disk: the first row does not fit."""
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); from assay.cli import app; app()"
    command = [sys.executable, "-B", "-c", code, "validate", *TINY, "--records", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert "writing the run record" in done.stderr and "Traceback" not in done.stderr
    assert all(file.stat().st_size == 0 for file in tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unsupported("x"), 4),
        (NotRunHere("x"), 5),
        (Finding("x"), 6),
        (OSError(28, "No space left on device"), 7),
        (UsageError("x"), 2),
        (ceiling.TruthError("x"), 1),
        (KeyError("x"), None),
    ],
)
def test_every_kind_of_failure_has_its_code(error: Exception, code: int | None) -> None:
    assert errors.exit_code(error) == code


def test_a_fault_of_the_program_keeps_its_traceback_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "backend", lambda _: 1 / 0)
    result = run("generate", *TINY, "--prompt", "x")
    assert result.exit_code == 1
    assert "a fault of assay" in result.stderr and "ZeroDivisionError" in result.stderr


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "backend", interrupt)
    assert run("generate", *TINY, "--prompt", "x").exit_code == 130


def test_a_database_that_cannot_be_opened_is_usage(records: Path) -> None:
    assert "db='nonsense'" in complaint(run("index", "--records", str(records), "--db", "nonsense"), 2)


def test_a_damaged_record_is_named_with_its_line(records: Path) -> None:
    file = records / "sample.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text(lines[0] + "{broken\n" + lines[1])
    assert "sample.jsonl:2" in complaint(run("ledger", "--records", str(records)), 2)


def test_indices_default_to_all_that_the_golden_holds() -> None:
    assert indices("", [0, 2, 5]) == [0, 2, 5]
