"""Barriers only where a row needs another: enough of them for any plan, and none too many for a layer."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anvil.kernels.base import Kernel, Kind, Param
from anvil.runtime.binding import Binding
from anvil.runtime.plan import Buffer, Plan, Role, Row, View
from anvil.runtime.waves import ALONE, WAIT, marks

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
