"""Targets are compared from what each of them recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from assay.agreement import ELEMENTS, NOTE, Pair, agreements, label, note, pairs, probes, summary, ulps
from assay.case import arrays, materialise
from assay.cli import app
from assay.dashboard import page
from assay.formats import BF16, F32, I64
from assay.record import CaseKey, Note
from assay.record.rows import decode, encode
from assay.spec import registry

HERE = Path(__file__).parents[1]
NEXT = np.nextafter(np.float32(1), np.float32(2)).astype(np.float64)


def recorded(target: str, *values: float, name: str = "add", quant: str = "fp32", given: float = 1.0) -> Note:
    """The note of a run in which ``target`` gave these values, as it is read back from a file."""
    data = note(F32, [torch.tensor([given])], [np.array(values)])
    row = Note(CaseKey(f"{name}-{quant}-{target}", "op", name, target, quant=quant), NOTE, data)
    found = decode(encode(row))
    assert isinstance(found, Note)
    return found


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ((1.0, np.nan), (1.0, np.nan), 0.0),
        ((1.0,), (NEXT,), 1.0),
        ((0.0,), (-0.0,), 0.5),
        ((1.0,), (np.nan,), np.inf),
        ((np.inf,), (1.0,), np.inf),
        ((1.0, 2.0), (1.0,), np.inf),
    ],
)
def test_distance_counts_units_in_the_last_place(one, other, distance) -> None:
    assert ulps(F32, np.array(one), np.array(other)) == distance


def test_distance_is_in_units_of_the_results_own_type() -> None:
    assert ulps(BF16, np.array([1.0]), np.array([1.0078125])) == 1.0
    assert ulps(I64, np.array([3]), np.array([4])) == np.inf


def test_targets_that_agree_to_the_bit_form_a_group() -> None:
    rows = [recorded("a", 1.0), recorded("b", 1.0), recorded("c", NEXT), recorded("a", 3.0, name="mul")]
    (found,) = agreements(rows)  # of mul there is one target: nothing to compare
    assert found.groups == (("a", "b"), ("c",)) and found.ulps == 1.0
    assert list(pairs([found])) == [
        Pair("a", "b", 1, 1, 0.0, ""),
        Pair("a", "c", 1, 0, 1.0, "add"),
        Pair("b", "c", 1, 0, 1.0, "add"),
    ]
    assert summary([found]) == (
        "1 cases on 3 targets, 3 comparisons of two: 1 equal to the bit, the others apart by at most 1 ulp"
    )


def test_modes_are_apart_and_other_inputs_are_never_compared() -> None:
    rows = [
        recorded("a", 1.0),
        recorded("b", 1.0, given=2.0),
        recorded("a", 1.0, quant="w8"),
        recorded("b", 1.0, quant="w8"),
    ]
    assert [label(row.subject) for row in agreements(rows)] == ["add-w8"]


def test_probes_are_the_same_everywhere_and_stored_whole() -> None:
    for spec in registry(HERE / "ops").values():
        examples = probes(spec)
        inputs = materialise(spec, spec.dtypes[0], examples[0])
        size = spec.golden(*arrays(inputs)).size
        assert 0 < size <= ELEMENTS, f"{spec.name}: {size} elements"


def test_command_and_page_show_what_differs(tmp_path: Path) -> None:
    rows = [recorded("a", 1.0), recorded("b", 1.0), recorded("c", NEXT)]
    shown = page.render(rows)
    assert "Targets against each other" in shown and "1 ulp" in shown and "a, b | c" in shown
    assert "Targets against each other" not in page.render(rows[:1])
    done = CliRunner().invoke(app, ["agreement", "--records", str(tmp_path)])
    assert done.exit_code == 2
