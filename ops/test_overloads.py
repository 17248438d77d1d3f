"""The one test file of all overloads: every one in this folder, in every element type, on every target."""

from __future__ import annotations

from assay.overloads.check import OverloadCheck


def test_overload(overload: OverloadCheck) -> None:
    overload.run()
