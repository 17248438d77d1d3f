"""The page and the grid: everything recorded is on it, nothing else is, and it needs nothing outside the file."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from sample_records import TARGETS, result, run_row, sample_rows, timing

from assay import ledger
from assay.dashboard import charts, page
from assay.dashboard.grid import grid
from assay.dashboard.speed import speeds
from assay.record import RecordError

VOID = {"meta", "br", "line", "rect", "polyline"}


class Structure(HTMLParser):
    """Checks that tags are balanced; collects cells of the heat map, ids, and everything that points outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[tuple[str, str, str]] = []
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self._cell: dict[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [value for name, value in attributes.items() if name in ("src", "href")]
        self.outside += [tag] if tag in ("script", "link", "iframe", "img") else []
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.references += [attributes["aria-labelledby"]] if "aria-labelledby" in attributes else []
        if tag == "td" and "title" in attributes:
            self._cell = attributes
            self.cells.append((attributes["class"], attributes["title"], ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        self._cell = None if tag == "td" else self._cell

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            status, title, text = self.cells[-1]
            self.cells[-1] = status, title, text + data.strip()


@pytest.fixture(scope="module")
def html() -> str:
    return page.render(sample_rows())


@pytest.fixture(scope="module")
def parsed(html: str) -> Structure:
    structure = Structure()
    structure.feed(html)
    return structure


def test_the_page_is_whole_and_needs_nothing_outside_itself(parsed: Structure, html: str) -> None:
    assert parsed.open == []
    assert parsed.outside == []
    assert "://" not in html and "@import" not in html and "url(" not in html


def test_every_cell_says_in_words_what_its_colour_says(parsed: Structure) -> None:
    words = {
        "ok": r"\d\.\d{3}|ok",
        "failed": "✗ failed",
        "not_run": "not run",
        "unsupported": "unsupported",
        "none": "—",
    }
    assert len(parsed.cells) == 4 * len(TARGETS)
    for status, _, text in parsed.cells:
        assert re.fullmatch(words[status], text), (status, text)


def test_reasons_are_on_hover_and_in_a_table(parsed: Structure, html: str) -> None:
    titles = [title for status, title, _ in parsed.cells if status == "not_run"]
    assert titles == ["0 examples, not run: needs qemu-aarch64: apt-get install qemu-user"]
    assert html.count("needs qemu-aarch64") == 2
    assert "1: rms_norm on x86_64-avx512" in html


def test_sections_are_labelled_by_headings_that_exist(parsed: Structure) -> None:
    assert parsed.references and set(parsed.references) <= set(parsed.ids)


def test_text_from_records_is_escaped(html: str) -> None:
    assert "Capital of &lt;France&gt;?" in html and "Paris &amp; more" in html and "<France>" not in html
    assert "no lowering for &lt;this&gt;" in html


def test_numbers_of_the_record_are_on_the_page(html: str) -> None:
    for text in ("12 ok, 1 failed", "1,040", "27.0 ms / token", "80 % — 20.0 of 25.0 GB/s", "1.50 × eager", "540 MB"):
        assert text in html, text
    assert "another choice at token 9: real" in html
    assert "error grows as depth<sup>0.50</sup>" in html


def test_speed_is_hidden_where_a_check_of_the_model_failed() -> None:
    rows = [run_row(), timing("tiny", "x86_64-avx2")]
    wrong = result("tiny", "x86_64-avx2", 3.0, "failed", "tokens differ", kind="model", check="test_tokens")
    assert "ms / token</div>" in page.render(rows)

    text = page.render([*rows, wrong])

    assert "ms / token</div>" not in text and "hidden: a check of this model failed" in text
    assert not speeds([*rows, wrong])[0].accurate


def test_the_least_time_per_token_is_weights_over_bandwidth() -> None:
    (speed,) = speeds([timing("tiny", "x86_64-avx2")])
    assert speed.floor_ms == pytest.approx(540e6 / 25e9 * 1e3)


def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(UndefinedError):
        page.write([replace(run_row(), facts={})], target)
    assert target.read_text() == "old"
    assert page.write(sample_rows(), target) == target
    assert list(tmp_path.iterdir()) == [target]


def test_a_page_that_cannot_be_written_is_one_message_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"writing the page: out=.*; the records are untouched"):
        page.write(sample_rows(), tmp_path / "file" / "report.html")


def test_the_grid_has_ops_before_layers_before_models_and_x86_first() -> None:
    table = grid(ledger.rows(sample_rows()))
    assert table.targets == TARGETS
    assert [(line.kind, line.name) for line in table.lines] == [
        ("op", "linear"),
        ("op", "rms_norm"),
        ("layer", "decoder_layer"),
        ("model", "tiny"),
    ]
    assert [cell and cell.status for cell in table.lines[1].cells] == ["ok", "failed", "not_run", "unsupported", None]


def test_charts_survive_what_cannot_be_drawn() -> None:
    nothing = [{"name": "a", "error": 0.0, "headroom": 0.0}, {"name": "b", "error": None, "headroom": None}]
    assert "No layer has a finite error" in charts.residual_stream(nothing)
    assert charts.sparkline([1.0]) == ""
    assert 'width="0.0"' in charts.bar(None, "none") and 'width="240.0"' in charts.bar(7.0, "over")


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (540e6, "540 MB"), (26.4e9, "26.4 GB"), (float("nan"), "unknown")]
)
def test_bytes_for_people(value: float, text: str) -> None:
    assert page.human_bytes(value) == text
