"""The one test file of all layers: attention block, MLP, decoder layer, on every target."""

from __future__ import annotations

import pytest

from assay.judge import Judge
from assay.strategies.layouts import NAMES as LAYOUTS


@pytest.mark.cases("layer", examples=60, everywhere=True)
def test_within_bound(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=judge.spec.values)
    judge.probe()


@pytest.mark.cases("layer", examples=24, has="exact")
def test_exact_integers(judge: Judge) -> None:
    judge.explore(judge.exact, values=("integers",))


@pytest.mark.cases("layer", examples=24)
def test_special_values(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=judge.spec.specials)


@pytest.mark.cases("layer", examples=24)
def test_layouts(judge: Judge) -> None:
    judge.explore(judge.within_bound, values=("normal",), layouts=LAYOUTS[1:])


@pytest.mark.cases("layer", examples=8, has="properties")
def test_properties(judge: Judge) -> None:
    judge.require_bits()
    for relation in judge.spec.properties:
        judge.explore(lambda example, r=relation: r.check(judge, example), values=("normal",), label=relation.name)


@pytest.mark.cases("layer", examples=16, across=True, everywhere=True)
def test_same_bits_as_reference_target(judge: Judge) -> None:
    judge.explore(judge.across, values=judge.spec.every_kind, layouts=LAYOUTS)
