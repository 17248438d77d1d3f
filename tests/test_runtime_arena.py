"""Buffers alive together never share a byte, and the arena stays near the least memory possible."""

import sympy
from hypothesis import given
from hypothesis import strategies as st

from anvil.kernels.base import Kernel, Param
from anvil.runtime.arena import ALIGN, Lifetime, lifetimes, place
from anvil.runtime.plan import Buffer, Plan, Row, View


@st.composite
def workloads(draw):
    count = draw(st.integers(0, 24))
    alive, sizes = [], []
    for i in range(count):
        first = draw(st.integers(0, 20))
        alive.append(Lifetime(f"t{i}", first, first + draw(st.integers(0, 6))))
        sizes.append(draw(st.integers(0, 5000)))
    return alive, sizes


@given(workloads())
def test_buffers_alive_together_never_overlap(workload):
    alive, sizes = workload
    arena = place(alive, sizes)
    for i, a in enumerate(alive):
        start_a = arena.offsets[a.name]
        assert start_a % ALIGN == 0
        assert start_a + sizes[i] <= arena.nbytes
        for j, b in enumerate(alive[:i]):
            if a.first <= b.last and b.first <= a.last:
                start_b = arena.offsets[b.name]
                assert start_a + sizes[i] <= start_b or start_b + sizes[j] <= start_a


@given(workloads())
def test_arena_takes_no_less_than_the_lower_bound_and_no_more_than_everything(workload):
    alive, sizes = workload
    arena = place(alive, sizes)
    assert arena.lower_bound <= arena.nbytes <= sum(-(-s // ALIGN) * ALIGN for s in sizes)


def test_a_chain_of_equal_buffers_takes_two():
    alive = [Lifetime(f"t{i}", i, i + 1) for i in range(30)]
    assert place(alive, [256] * 30).nbytes == 512


def test_a_freed_gap_is_used_again():
    alive = [Lifetime("long", 0, 9), Lifetime("early", 0, 1), Lifetime("late", 2, 3)]
    arena = place(alive, [640, 1280, 1280])
    assert arena.offsets["early"] == arena.offsets["late"]


def test_lifetimes_run_from_first_to_last_row_and_outputs_live_to_the_end():
    n = sympy.Symbol("n")
    kernel = Kernel("copy", (Param("x", "in", "f32", 1), Param("y", "out", "f32", 1)), "")

    def row(x, y):
        return Row("copy", (View(x, 0, (n,), (1,)), View(y, 0, (n,), (1,))), node=y)

    names = {"x": "input", "a": "temp", "b": "temp", "c": "temp"}
    plan = Plan(
        name="chain",
        symbols=("n",),
        buffers={k: Buffer(k, role, "f32", (n,)) for k, role in names.items()},
        rows=[row("x", "a"), row("a", "b"), row("b", "c"), row("a", "c")],
        inputs=("x",),
        outputs=(View("b", 0, (n,), (1,)),),
        kernels={"copy": kernel},
    )
    assert lifetimes(plan) == [Lifetime("a", 0, 3), Lifetime("b", 1, 4), Lifetime("c", 2, 3)]
