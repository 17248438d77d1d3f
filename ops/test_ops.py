"""The one test file of all ops: every spec in this folder, on every target, in every variant."""

from __future__ import annotations

import pytest

from assay.judge import Judge
from assay.strategies.layouts import NAMES as LAYOUTS


@pytest.mark.cases("op", examples=80, everywhere=True)
def test_within_bound(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=judge.spec.values)
    judge.probe()


@pytest.mark.cases("op", examples=50, has="exact")
def test_exact_integers(judge: Judge) -> None:
    judge.explore(judge.exact, values=("integers",))


@pytest.mark.cases("op", examples=30, has="specials")
def test_special_values(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=judge.spec.specials)


@pytest.mark.cases("op", examples=40)
def test_layouts(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=("normal",), layouts=LAYOUTS[1:])


@pytest.mark.cases("op", examples=40, has="narrow")
def test_rounding_bias(judge: Judge) -> None:
    judge.explore(judge.collect_rounding, values=("normal",))
    if judge.replayed is None:
        judge.require_unbiased()


@pytest.mark.cases("op", examples=1, has="known")
def test_known_inputs(judge: Judge) -> None:
    judge.known(("contiguous", "offset", "strided", "stepped", "transposed", "heads_inside"))


@pytest.mark.cases("op", examples=1, has="lossy")
def test_cost_of_quantisation(judge: Judge) -> None:
    judge.cost()


@pytest.mark.cases("op", examples=12, has="properties")
def test_properties(judge: Judge) -> None:
    judge.require_bits()
    for relation in judge.spec.properties:
        judge.explore(lambda example, r=relation: r.check(judge, example), values=("normal",), label=relation.name)


@pytest.mark.cases("op", examples=20, across=True, everywhere=True)
def test_same_bits_as_reference_target(judge: Judge) -> None:
    judge.explore(judge.across, values=judge.spec.every_kind, layouts=LAYOUTS)
