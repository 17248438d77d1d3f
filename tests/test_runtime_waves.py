"""Barriers only where a row needs another: enough of them for any plan, and none too many for a layer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anvil
from anvil import models
from anvil.dtypes import itemsize
from anvil.kernels.base import Kernel, Kind, Param
from anvil.runtime.binding import Binding
from anvil.runtime.plan import Buffer, Plan, Role, Row, View
from anvil.runtime.waves import ALONE, WAIT, marks
from assay.tokens import registry, source

SMALL, LARGE = 4, 1 << 20  # elements of f32
Use = tuple[str, Kind]


def plan_of(rows: list[list[Use]], sizes: dict[str, int], roles: dict[str, Role] | None = None) -> Plan:
    """A plan of rows that touch whole buffers."""
    kernels = {}
    for number, uses in enumerate(rows):
        params = tuple(Param(f"p{place}", kind, "f32", 1) for place, (_, kind) in enumerate(uses))
        kernels[f"k{number}"] = Kernel(f"k{number}", params, "")
    return Plan(
        name="waves",
        symbols=(),
        buffers={name: Buffer(name, (roles or {}).get(name, "temp"), "f32", (size,)) for name, size in sizes.items()},
        rows=[
            Row(f"k{number}", tuple(View(name, 0, (sizes[name],), (1,)) for name, _ in uses), node=f"n{number}")
            for number, uses in enumerate(rows)
        ],
        inputs=(),
        outputs=(),
        kernels=kernels,
    )


def marked(plan: Plan, addresses: dict[str, int]) -> np.ndarray:
    binding = Binding(plan)
    binding.bind({})
    binding.place(addresses)
    return marks(binding)


def apart(sizes: dict[str, int]) -> dict[str, int]:
    """Addresses of buffers that share nothing."""
    return dict(zip(sizes, itertools.accumulate((4 * size for size in sizes.values()), initial=4096), strict=False))


@st.composite
def placed_plans(draw: st.DrawFn) -> tuple[Plan, dict[str, int]]:
    """Rows of any reads and writes over buffers that may overlap, as in an arena."""
    sizes = {f"b{i}": draw(st.sampled_from((0, SMALL, 2 * SMALL, LARGE))) for i in range(6)}
    addresses = {name: 4096 + 8 * draw(st.integers(0, 12)) for name in sizes}
    uses = st.tuples(st.sampled_from(sorted(sizes)), st.sampled_from(("in", "out", "inout")))
    rows = draw(st.lists(st.lists(uses, min_size=1, max_size=3), max_size=9))
    return plan_of(rows, sizes), addresses


def memory(plan: Plan, addresses: dict[str, int], row: int, kinds: tuple[str, ...]) -> list[range]:
    pairs = zip(plan.kernels[plan.rows[row].kernel].params, plan.rows[row].args, strict=True)
    names = [arg.buffer for param, arg in pairs if isinstance(arg, View) and param.kind in kinds]
    return [range(addresses[name], addresses[name] + 4 * int(plan.buffers[name].shape[0])) for name in names]


def collide(left: list[range], right: list[range]) -> bool:
    return any(a and b and a.start < b.stop and b.start < a.stop for a in left for b in right)


@settings(deadline=None)  # a time limit of milliseconds fails on a machine that is busy
@given(placed_plans())
def test_rows_of_different_threads_that_share_written_memory_are_kept_apart(given_: tuple[Plan, dict[str, int]]):
    plan, addresses = given_
    found = marked(plan, addresses)
    for early, late in itertools.combinations(range(len(plan.rows)), 2):
        if found[early] & ALONE and found[late] & ALONE:
            continue  # one thread, in order
        writes = [memory(plan, addresses, row, ("out", "inout")) for row in (early, late)]
        touches = [memory(plan, addresses, row, ("in", "out", "inout")) for row in (early, late)]
        if collide(writes[0], touches[1]) or collide(touches[0], writes[1]):
            assert any(found[early + 1 : late + 1] & WAIT), (early, late)


def test_projections_of_one_input_do_not_wait_for_each_other():
    sizes = dict.fromkeys("xqkvy", LARGE)
    rows: list[list[Use]] = [[("x", "out")], *([("x", "in"), (y, "out")] for y in "qkv"), [("v", "in"), ("y", "out")]]
    assert marked(plan_of(rows, sizes), apart(sizes)).tolist() == [0, WAIT, 0, 0, WAIT]


def test_a_temporary_that_lies_where_another_one_is_still_read_waits():
    sizes = dict.fromkeys("xqk", LARGE)
    rows: list[list[Use]] = [[("x", "in"), ("q", "out")], [("k", "out")]]
    assert marked(plan_of(rows, sizes), apart(sizes)).tolist() == [0, 0]
    assert marked(plan_of(rows, sizes), apart(sizes) | {"k": 4096 + 64}).tolist() == [0, WAIT]


def test_small_rows_follow_each_other_on_one_thread():
    sizes = {"x": SMALL, "y": SMALL, "cache": LARGE, "w": LARGE, "z": SMALL}
    rows: list[list[Use]] = [
        [("x", "in"), ("y", "out")],
        [("y", "in"), ("cache", "inout")],
        [("cache", "in"), ("z", "out")],
    ]
    plan = plan_of(rows, sizes, {"cache": "cache"})
    assert marked(plan, apart(sizes)).tolist() == [ALONE, ALONE, WAIT]


def bytes_of(binding: Binding, row: int) -> list[tuple[Kind, int, int]]:
    """What a row reads and writes, by the words its kernel is given: kind, first byte, and the one after the last."""
    words, at, found = binding.words.tolist(), int(binding.first_word[row]), []
    for param in binding.plan.kernels[binding.plan.rows[row].kernel].params:
        if param.rank >= 0:
            _, pointer, offset, *shape = words[at : at + param.words]
            steps = [(size - 1) * stride for size, stride in zip(shape[: param.rank], shape[param.rank :], strict=True)]
            first, last = (offset + sum(each(0, step) for step in steps) for each in (min, max))
            if 0 not in shape[: param.rank]:
                width = itemsize(param.dtype)
                found.append((param.kind, pointer + first * width, pointer + (last + 1) * width))
        at += param.words
    return found


def conflict(early: list[tuple[Kind, int, int]], late: list[tuple[Kind, int, int]]) -> bool:
    return any(
        {a, b} != {"in"} and first < after and start < stop for a, first, stop in early for b, start, after in late
    )


@pytest.mark.parametrize("mode", ["fp32", "w8a8", "w4-g32"])
def test_rows_of_a_decode_step_that_share_a_written_byte_are_kept_apart(mode: str):
    """By the addresses and strides that kernels get, not by the names of buffers."""
    model = anvil.compile(models.load(str(source.resolve(registry.model("llama-tiny")))), quant=mode, threads=3)
    model.start()
    binding = model.plans.decode.binding
    found, touched = marks(binding), [bytes_of(binding, row) for row in range(len(binding.plan.rows))]
    waves, conflicts = np.cumsum(found & WAIT != 0), 0
    for early, late in itertools.combinations(range(len(found)), 2):
        if conflict(touched[early], touched[late]):
            conflicts += 1
            assert waves[early] < waves[late] or found[early] & found[late] & ALONE, (early, late)
    assert conflicts > len(found) > waves[-1] > 0 and (found & ALONE != 0).any() and (found & ALONE == 0).any()
