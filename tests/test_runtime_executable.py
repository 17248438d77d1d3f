"""A plan runs on real kernels: arguments of any strides, chains through the arena, tracing, guarded memory."""

from dataclasses import replace

import pytest
import sympy
import torch
from metal_kernels import FMA

from anvil import codegen, targets
from anvil.errors import InputError, KernelError
from anvil.runtime import open_executor
from anvil.runtime.executable import Executable
from anvil.runtime.memory import Memory
from anvil.runtime.plan import Buffer, Plan, Row, Scalar, View
from anvil.runtime.signature import Signature, Spec
from anvil.runtime.step import Step

AVX2 = targets.get("x86_64-avx2")
N = sympy.Symbol("N")


def fma(x, y, a, b, node):
    return Row("fma_f32", (_all(x), _all(y), Scalar(a, "f32"), Scalar(b, "f32")), node, source="model.py:3")


def _all(name):
    return View(name, 0, (N,), (1,))


def chain():
    """y = ((x·2 + 1)·3 + 0)·1 + 5, with w·2 into z."""
    roles = {"x": "input", "w": "weight", "t": "temp", "u": "temp", "y": "output", "z": "output"}
    return Plan(
        name="chain",
        symbols=("N",),
        buffers={name: Buffer(name, role, "f32", (N,)) for name, role in roles.items()},
        rows=[
            fma("x", "t", 2.0, 1.0, "first"),
            fma("t", "u", 3.0, 0.0, "second"),
            fma("u", "y", 1.0, 5.0, "third"),
            fma("w", "z", 2.0, 0.0, "double"),
        ],
        inputs=("x",),
        outputs=(_all("y"), _all("z")),
        kernels={"fma_f32": FMA},
        weights={"w": "weight"},
        values={
            "first": _all("t"),
            "second": _all("u"),
            "third": _all("y"),
            "tail": View("t", N - 1, (1,), (1,)),
            "x": _all("x"),
        },
    )


@pytest.fixture(scope="module", params=["in-process", "runner"])
def executor(request):
    executor = open_executor(AVX2, force=request.param)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def library():
    return codegen.compile_library([FMA], AVX2)


def plain(buffer, parameter, weight, out):
    out.copy_(weight.whole())


@pytest.fixture(params=[False, True], ids=["shared", "guarded"])
def executable(executor, library, request):
    return Executable(chain(), Memory(executor, library), pack=plain, guard=request.param)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 100])
@pytest.mark.parametrize("threads", [1, 2])
def test_runs_a_chain(executable, n, threads):
    x, w = torch.randn(n), torch.randn(n)
    y, z = executable.run({"N": n}, {"x": x, "weight": w}, threads=threads)
    assert torch.equal(y, (x.double() * 2 + 1).float() * 3 + 5)
    assert torch.equal(z, w * 2)


def test_takes_any_strides_and_offsets(executable):
    x = torch.randn(40)[5:35:3]
    y, z = executable.run({"N": 10}, {"x": x, "weight": torch.tensor(3.0).expand(10)})
    assert torch.equal(y, (x.double() * 2 + 1).float() * 3 + 5)
    assert torch.equal(z, torch.full((10,), 6.0))


@pytest.mark.parametrize("dense", [False, True])
def test_an_input_captured_with_strides_is_spread_out(executor, library, dense):
    every_third = View("x", 0, (4,), (3,))
    rows = [Row("fma_f32", (View("x", 0, (10,), (1,)), _all("y"), Scalar(1.0, "f32"), Scalar(0.0, "f32")), "copy")]
    plan = replace(chain(), rows=rows, outputs=(View("y", 0, (4,), (3,)),), values={"x": every_third})
    plan.buffers["x"] = Buffer("x", "input", "f32", (10,))
    x = torch.arange(10.0)[::3]
    executable = Executable(plan, Memory(executor, library), pack=plain, params={"weight": torch.ones(10)})
    (y,) = executable.run({"N": 10}, {"x": x.clone() if dense else x})
    assert torch.equal(y, x)


def test_runs_do_not_share_outputs(executable):
    first, _ = executable.run({"N": 4}, {"x": torch.ones(4), "weight": torch.ones(4)})
    executable.run({"N": 4}, {"x": torch.zeros(4), "weight": torch.ones(4)})
    assert torch.equal(first, torch.full((4,), 14.0))


def test_trace_reads_values_before_their_memory_is_used_again(executable):
    x = torch.arange(6.0)
    found = executable.trace({"N": 6}, {"x": x, "weight": x}, ["third", "tail", "second", "x", "first"])
    assert list(found) == ["third", "tail", "second", "x", "first"]
    assert torch.equal(found["first"], 2 * x + 1)
    assert torch.equal(found["second"], 3 * (2 * x + 1))
    assert torch.equal(found["third"], 3 * (2 * x + 1) + 5)
    assert torch.equal(found["tail"], torch.tensor([11.0]))
    assert torch.equal(found["x"], x)


def test_trace_of_an_unknown_node_says_what_there_is(executable):
    with pytest.raises(InputError, match=r"nodes \['nowhere'\].*'first'"):
        executable.trace({"N": 1}, {"x": torch.ones(1), "weight": torch.ones(1)}, ["nowhere"])


def test_known_weights_are_packed_once(executor, library):
    packed = []

    def pack(buffer, parameter, weight, out):
        packed.append(buffer.name)
        out.copy_(-weight.whole())

    memory = Memory(executor, library)
    for _ in range(2):
        executable = Executable(chain(), memory, pack=pack, params={"weight": torch.ones(3)})
        for _ in range(2):
            _, z = executable.run({"N": 3}, {"x": torch.ones(3)})
            assert torch.equal(z, torch.full((3,), -2.0))
    assert packed == ["w"]
    assert memory.constant_bytes() == 12


def crashing(first_good):
    """A plan whose row ``bad`` runs past the end of its input."""
    bad = View("x", 0, (N + 1024,), (1,))
    rows = [Row("fma_f32", (bad, _all("y"), Scalar(1.0, "f32"), Scalar(0.0, "f32")), "bad", source="model.py:9")]
    return replace(chain(), rows=[*chain().rows[:first_good], *rows])


def test_a_crash_names_kernel_node_and_line_and_the_next_run_is_fine(library):
    executor = open_executor(AVX2, isolated=True)
    memory = Memory(executor, library)
    good = Executable(chain(), memory, pack=plain, params={"weight": torch.ones(3)})
    bad = Executable(crashing(2), memory, pack=plain, params={"weight": torch.ones(3)}, guard=True)
    for _ in range(2):
        y, _ = good.run({"N": 3}, {"x": torch.ones(3)})
        assert torch.equal(y, torch.full((3,), 14.0))
        with pytest.raises(KernelError, match=r"kernel=fma_f32 node=bad \(model\.py:9\): SIGSEGV in row") as caught:
            bad.run({"N": 3}, {"x": torch.ones(3)})
        assert caught.value.row == 2
    executor.close()


def test_a_step_whose_memory_was_lost_says_so_until_bound_again(library):
    executor = open_executor(AVX2, isolated=True)
    memory = Memory(executor, library)
    step = Step(Executable(chain(), memory, pack=plain, params={"weight": torch.ones(3)}), {"N": 3}, threads=1)
    with pytest.raises(KernelError, match="node=bad"):
        Executable(crashing(0), memory, pack=plain, guard=True).run(
            {"N": 3}, {"x": torch.ones(3), "weight": torch.ones(3)}
        )
    with pytest.raises(KernelError, match="memory has moved; bind the step again"):
        step()
    step.bind({"N": 3})
    step.inputs["x"][:] = 1
    step()
    assert step.outputs["y"].tolist() == [14.0] * 3
    executor.close()


def test_arena_grows_and_never_shrinks(executor, library):
    memory = Memory(executor, library)
    executable = Executable(chain(), memory, pack=plain)
    sizes = []
    for n in (10, 1000, 10):
        executable.run({"N": n}, {"x": torch.ones(n), "weight": torch.ones(n)})
        sizes.append(executable.arena.nbytes)
    assert sizes[0] < sizes[1] == sizes[2] == memory.block_bytes("arena")


def test_step_runs_again_on_the_same_arrays(executor, library):
    memory = Memory(executor, library)
    executable = Executable(chain(), memory, pack=plain, params={"weight": torch.ones(4)})
    step = Step(executable, {"N": 4}, threads=2)
    for value in (1.0, 2.0):
        step.inputs["x"][:] = value
        step()
        assert step.outputs["y"].tolist() == [6 * value + 8] * 4
    step.bind({"N": 2})
    step.inputs["x"][:] = 0
    step()
    assert step.outputs["y"].tolist() == [8.0, 8.0]


SIGNATURE = Signature(
    "p",
    {"x": Spec((N, sympy.Symbol("K")), torch.float32), "w": Spec((2 * sympy.Symbol("K"), 3), torch.float32)},
    {"N": (1, 8)},
)


def test_signature_solves_sizes():
    assert SIGNATURE.solve({"x": torch.ones(5, 4), "w": torch.ones(8, 3)}) == {"N": 5, "K": 4}


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.ones(5, 4), torch.ones(7, 3), r"w has shape=\(7, 3\), expected \(8, 3\)"),
        (torch.ones(9, 4), torch.ones(8, 3), r"x\.shape\[0\]=9 \(size N\), expected 1\.\.8"),
        (torch.ones(5, 4).double(), torch.ones(8, 3), r"x has dtype=torch\.float64 rank=2, expected"),
        (torch.ones(5), torch.ones(8, 3), r"rank=1, expected dtype=torch\.float32 rank=2"),
    ],
)
def test_signature_names_what_does_not_fit(x, w, message):
    with pytest.raises(InputError, match=message):
        SIGNATURE.solve({"x": x, "w": w})


def test_signature_names_a_missing_argument():
    with pytest.raises(InputError, match="argument w is missing"):
        SIGNATURE.solve({"x": torch.ones(5, 4)})
