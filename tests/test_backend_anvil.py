"""The adapter compiles through the whole front end, runs isolated, and reports what kernels do wrong."""

import pytest
import torch

from assay import backends
from assay.backends import anvil as adapter
from assay.backends.anvil import BACKEND, AnvilBackend, Prepared
from assay.backends.protocol import Program, Unsupported

TARGETS = [pytest.param(s.name, marks=pytest.mark.skipif(not s.runs, reason=s.reason)) for s in BACKEND.targets()]


class Linear(torch.nn.Module):
    def forward(self, x, w):
        return torch.nn.functional.linear(x, w)


LINEAR = Program(
    "linear", Linear(), (torch.ones(3, 8), torch.ones(5, 8)), ({0: "M", 1: "K"}, {0: "N", 1: "K"}), weights=(1,)
)


def whole_numbers(*shape):
    return torch.randint(-8, 8, shape).float()


@pytest.mark.parametrize("target", TARGETS)
def test_weights_given_at_each_call_are_packed(target):
    compiled = BACKEND.compile(LINEAR, target)
    for m, k, n in [(1, 1, 1), (3, 8, 5), (7, 33, 65), (0, 4, 4), (4, 0, 4)]:
        x, w = whole_numbers(m, k), whole_numbers(n, k)
        (y,) = compiled.run(x, w, threads=2)
        assert torch.equal(y, x @ w.t())


def test_inputs_may_be_strided_offset_and_expanded():
    compiled = BACKEND.compile(LINEAR, "x86_64-avx2")
    x, w = whole_numbers(9, 7)[1::2, ::2], whole_numbers(4, 1).expand(4, 4)
    (y,) = compiled.run(x, w)
    assert torch.equal(y, x @ w.t())


def test_stages_run_in_torch_and_start_with_capture():
    compiled = BACKEND.compile(LINEAR, "x86_64-avx2")
    x, w = whole_numbers(3, 8), whole_numbers(5, 8)
    names = [name for name, _ in compiled.stages()]
    assert names[0] == "capture"
    assert len(names) == len(set(names))
    for _, execute in compiled.stages():
        assert torch.equal(execute(x, w)[0], x @ w.t())


def test_equal_programs_have_equal_artifacts_and_edges_come_from_the_kernels():
    first, again = BACKEND.compile(LINEAR, "x86_64-avx2"), BACKEND.compile(LINEAR, "x86_64-avx2")
    assert first.artifact == again.artifact
    assert first.artifact != BACKEND.compile(LINEAR, "x86_64-avx512").artifact
    assert {"M", "N", "K"} <= set(first.edges)


def test_targets_share_what_does_not_depend_on_them(monkeypatch):
    made = []
    monkeypatch.setattr(adapter, "Prepared", lambda captured: made.append(Prepared(captured)) or made[-1])
    monkeypatch.setattr(adapter, "_REMEMBERED", 1)
    backend, other = AnvilBackend(), Program("other", LINEAR.module, LINEAR.example, LINEAR.dynamic)
    for program, target in [(LINEAR, "x86_64-avx2"), (LINEAR, "x86_64-avx512"), (other, "x86_64-avx2")]:
        backend.compile(program, target)
    assert [(one.captured.name, one.written_out.stage) for one in made] == [
        ("linear", "write_out"),
        ("other", "write_out"),
    ]
    backend.compile(LINEAR, "x86_64-avx2")
    assert len(made) == 3  # only the last programs are kept


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


def test_an_op_without_lowering_is_unsupported_by_name():
    with pytest.raises(Unsupported, match="bessel_j0"):
        BACKEND.compile(Program("bessel", Bessel(), (torch.ones(4),), ({0: "N"},)), "x86_64-avx2")


def test_an_unknown_compiler_is_refused_with_those_that_can_be_loaded() -> None:
    for name in backends.names():
        assert backends.load(name).targets()
    with pytest.raises(ValueError, match=r"torch_compile.*anvil.*torch_eager"):
        backends.load("torch_compile")
