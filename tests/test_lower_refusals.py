"""Values and sizes for which PyTorch raises end a compiled run with an error too, and never a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from lowered import Lowered, compiled

from anvil.errors import DivisionByZeroError, InputError, SizeError, ValueRangeError

aten = torch.ops.aten
F = torch.nn.functional
i8, i64, u8 = torch.int8, torch.int64, torch.uint8


def whole(*numbers: int, dtype: torch.dtype = i64) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


def floats(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def channels(x: torch.Tensor) -> torch.Tensor:
    """The same signal four times."""
    return x[:, None].expand(-1, 4, -1)


def taps(w: torch.Tensor) -> torch.Tensor:
    """A kernel of three taps for each of four channels, one per element."""
    return w[:, None, None].expand(-1, 4, 3)


@dataclass(frozen=True)
class Case:
    """``call`` of inputs, of which those in ``good`` have a result and those in each of ``bad`` have none.

    The first two are equal in size if they are ``tied``. Those in ``unseen`` have none either, but PyTorch does not
    look: it reads memory outside, and raises or not by what lies there."""

    call: Callable[..., torch.Tensor]
    good: tuple[torch.Tensor, ...]
    bad: tuple[tuple[torch.Tensor, ...], ...]
    error: type[InputError]
    message: str
    tied: bool = False
    unseen: tuple[tuple[torch.Tensor, ...], ...] = ()


ONES = whole(1, 1, 1, dtype=torch.bool)
VALUES = {
    "floor_divide": Case(lambda x, y: x // y, (whole(7, -7), whole(2, 2)), ((whole(7, 1), whole(2, 0)),),
                         DivisionByZeroError, r"floor_divide.*is 0", True),
    "fused": Case(lambda x, y: (x + 1) % (y * 2 - 4) - x, (whole(7, -7), whole(3, 1)), ((whole(7, 1), whole(3, 2)),),
                  DivisionByZeroError, r"remainder.*is 0", True),
    "narrow": Case(lambda x, y: x.fmod(y), (whole(7, 255, dtype=u8), whole(2, 7, dtype=u8)),
                   ((whole(1, 2, dtype=u8), whole(0, 0, dtype=u8)),), DivisionByZeroError, r"fmod.*is 0", True),
    "wraps to zero": Case(lambda x, y: torch.div(x, y[0], rounding_mode="trunc"), (whole(7, -7, dtype=i8), whole(3, 4)),
                          ((whole(7, -7, dtype=i8), whole(256, 4)),), DivisionByZeroError, r"is 0"),
    "of a number": Case(lambda x: 7 % x, (whole(3, -3),), ((whole(0, 1),),), DivisionByZeroError, r"remainder.*is 0"),
    "masked_scatter": Case(lambda x, m, s: x.masked_scatter(m, s), (floats(3), ~ONES, floats(0)),
                           ((floats(3), ONES, floats(2)), (floats(1), ONES[:1], floats(0))), ValueRangeError,
                           "fewer elements than the mask", True),
    "bag": Case(lambda w, i, o: aten._embedding_bag(w, i, o)[0], (floats(4, 2), whole(0, 1, 3), whole(0, 2, 2)),
                tuple((floats(4, 2), whole(0, 1, 3), whole(*o)) for o in ((0, 4), (1, 2))), ValueRangeError,
                "offset of a bag",
                unseen=tuple((floats(4, 2), whole(0, 1, 3), whole(*o)) for o in ((0, 2, 1), (0, -1)))),
}  # fmt: skip
SIZES = {
    "amax": Case(lambda x: x.amax(-1), (floats(0, 3),), ((floats(2, 0),), (floats(0, 0),)), SizeError, "amax.*empty"),
    "all": Case(lambda x: x.min(), (floats(2, 3),), ((floats(2, 0),), (floats(0, 3),)), SizeError, "min.*empty"),
    "argmin": Case(lambda x: x.argmin(0), (floats(3, 0),), ((floats(0, 2),),), SizeError, "argmin.*empty"),
    "argmax": Case(lambda x: x.argmax(-1), (floats(0, 3),), ((floats(2, 0),),), SizeError, "argmax.*empty"),
    "max": Case(lambda x: x.max(1)[1], (floats(0, 3),), ((floats(2, 0),),), SizeError, "max.*empty"),
    "norm": Case(lambda x: torch.linalg.vector_norm(x, torch.inf, 1), (floats(0, 3),), ((floats(2, 0),),), SizeError,
                 "norm.*empty"),
    "even": Case(lambda x: F.adaptive_avg_pool1d(x, 2), (floats(0, 3),), ((floats(2, 0),),), SizeError, "pool.*empty"),
    "pad": Case(lambda x: F.pad(x, (1, 1), "replicate"), (floats(2, 3),), ((floats(2, 0),), (floats(0, 3),)), SizeError,
                "pad.*empty"),
    "resized": Case(lambda x: F.interpolate(x[None], size=4), (floats(2, 3),), ((floats(2, 0),), (floats(0, 3),)),
                    SizeError, "nearest.*empty"),
    "gather": Case(lambda x, i: x.gather(0, i.long()), (floats(2, 3), floats(4, 3) * 0),
                   ((floats(2, 3), floats(2, 4) * 0),), SizeError, "gather.*larger than that"),
    "scatter": Case(lambda x, s: x.scatter(0, (x * 0).long(), s), (floats(2, 3), floats(3, 4)),
                    ((floats(3, 3), floats(2, 3)), (floats(2, 4), floats(2, 3))), SizeError, "larger than src"),
    "convolution": Case(lambda x, w: F.conv1d(channels(x), taps(w), padding=1), (floats(2, 1), floats(2)),
                        ((floats(2, 0), floats(2)), (floats(0, 0), floats(2))), SizeError, "convolution.*too small"),
    "padding": Case(lambda x, w: F.conv1d(channels(x), taps(w), padding=3), (floats(0, 1), floats(2)),
                    ((floats(2, 0), floats(2)),), SizeError, "convolution.*empty"),
    "batch norm": Case(lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[1],
                       (floats(2, 3, 2),), ((floats(0, 3, 2),), (floats(2, 0, 2),), (floats(2, 3, 0),)), SizeError,
                       "batch is empty"),
    "diagonal_scatter": Case(lambda x, s: x.diagonal_scatter(s, 1), (floats(3, 4), floats(3)),
                             ((floats(3, 4), floats(4)), (floats(3, 4), floats(2)), (floats(0, 4), floats(1))),
                             SizeError, "src has another size"),
    "slice_scatter": Case(lambda x, s: x.slice_scatter(s, 0, -4), (floats(7, 3), floats(4, 3)),
                          ((floats(7, 3), floats(5, 3)), (floats(7, 3), floats(3, 3)), (floats(3, 3), floats(4, 3))),
                          SizeError, "src has another size"),
    "as_strided": Case(lambda x: x.as_strided((2, 2), (3, 1)), (floats(3, 2),), ((floats(1, 4),),), SizeError,
                       "beyond the memory"),
}  # fmt: skip
NOTHING_TO_DIVIDE = (torch.zeros(0, dtype=i64), torch.zeros(0, dtype=i64))


@pytest.fixture(scope="module", params=[VALUES, SIZES], ids=["values", "sizes"])
def together(request: pytest.FixtureRequest) -> tuple[dict[str, Case], Lowered]:
    """All cases as one program, every size free."""
    cases = request.param
    examples = [torch.ones([size + 3 for size in x.shape], dtype=x.dtype) for case in cases.values() for x in case.good]
    dynamic = [{dim: f"N{i}D{dim}" for dim in range(x.dim())} for i, x in enumerate(examples)]
    place = 0
    for case in cases.values():
        if case.tied:
            dynamic[place + 1] = dynamic[place]
        place += len(case.good)

    def function(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = iter(inputs)
        return tuple(case.call(*[next(left) for _ in case.good]) for case in cases.values())

    return cases, compiled(function, *examples, dynamic=dynamic, guard=True, isolated=True)


def given(cases: dict[str, Case], name: str = "", inputs: tuple[torch.Tensor, ...] = ()) -> list[torch.Tensor]:
    """Good inputs of all cases, but for one."""
    return [x for key, case in cases.items() for x in (inputs if key == name else case.good)]


def test_what_pytorch_refuses_ends_a_run_with_an_error(together: tuple[dict[str, Case], Lowered]) -> None:
    cases, run = together
    right = [case.call(*case.good) for case in cases.values()]
    for name, case in cases.items():
        for bad in case.bad:
            with pytest.raises((IndexError, RuntimeError)):
                case.call(*bad)
        for bad in (*case.bad, *case.unseen):
            with pytest.raises(case.error, match=case.message):
                run(*given(cases, name, bad))
    for got, want in zip(run(*given(cases), threads=2), right, strict=True):
        assert got.equal(want), "an error leaves nothing behind"
    if cases is VALUES:
        assert run(*given(cases, "floor_divide", NOTHING_TO_DIVIDE))[0].shape == (0,), "nothing is divided by zero"


def test_a_part_with_other_rows_is_not_put_beside_columns() -> None:
    """A slice along one dimension says nothing of the others: what lies beside it would be read past its end."""
    run = compiled(
        lambda x, s: x.slice_scatter(s, 1, 1, 3), floats(9, 4), floats(9, 2),
        dynamic=[{0: "N"}, {0: "M"}], guard=True, isolated=True,
    )  # fmt: skip
    for rows in (2, 10):
        with pytest.raises(InputError):
            run(floats(9, 4), floats(rows, 2))
    assert run(floats(5, 4), floats(5, 2)).equal(floats(5, 4).slice_scatter(floats(5, 2), 1, 1, 3))


def test_a_slice_that_ends_before_it_begins_changes_nothing() -> None:
    x, nothing = floats(9, 4), floats(0, 4)
    run = compiled(lambda x, s: x.slice_scatter(s, 0, 5, 2), x, nothing, guard=True, isolated=True)
    assert run(x, nothing).equal(x)
