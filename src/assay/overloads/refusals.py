"""What PyTorch refuses must be refused: values such as indices that do not exist, sizes, ranks, and element types it
has no such op for.

A clear error is right, a crash or a result is not. Everything is derived from the spec, and PyTorch is asked first:
what it takes is no matter here. In a type that PyTorch lacks a result is no fault: there is nothing to compare it with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from assay.backends.protocol import Compiled, Finding, NotRunHere, Unsupported
from assay.overloads import golden
from assay.overloads.examples import Example, arguments, examples, tensors
from assay.overloads.program import Call
from assay.overloads.spec import Overload

#: No tensor is this long, and an address worked out from it is no one's.
BEYOND = 1 << 40
#: What a refusal may be; a Finding is none.
REFUSALS = (IndexError, RuntimeError, ValueError)

Compile = Callable[[Sequence[Call]], Compiled]


def bad_values(overload: Overload, compiled: Compiled, calls: Sequence[Call], example: Example) -> Iterator[str]:
    """What went wrong with one tensor filled with a number that may not stand there: an index out of range, a zero, a
    one. Of tensors that stand at the same place in several calls one is enough."""
    given = [tensors(overload, call, example) for call in calls]
    tried: set[tuple[int, int]] = set()
    for number, call in enumerate(calls):
        for position, tensor in enumerate(given[number]):
            for value in _spoilt(call, position):
                if not tensor.numel() or (position, value) in tried:
                    continue
                asked = list(given[number])
                asked[position] = torch.full_like(tensor, value)
                if not _refused(overload, call, asked):
                    continue
                tried.add((position, value))
                stored = [asked if i == number else own for i, own in enumerate(given)]
                if not _refuses(lambda stored=stored: _run(compiled, stored)):
                    yield f"{call.form.title}: tensor {position} holds {value} alone: got a result, want an error"


def bad_sizes(overload: Overload, compiled: Compiled, calls: Sequence[Call], example: Example) -> Iterator[str]:
    """What went wrong with one size after the other set to 0, where a call has no result then. Where PyTorch itself
    dies of one, as the spec says, only a crash is wrong."""
    for axis in overload.axes:
        dims = {name: 0 if name == axis else size for name, size in example.dims}
        empty = replace(example, dims=tuple(dims.items()))
        given = [tensors(overload, call, empty) for call in calls]
        if axis in overload.fatal:
            _refuses(lambda given=given: _run(compiled, given))  # an error or a result; a crash is raised
            continue
        refused = [call for call, own in zip(calls, given, strict=True) if _refused(overload, call, own)]
        if refused and not _refuses(lambda given=given: _run(compiled, given)):
            yield f"{refused[0].form.title}: {axis}=0: got a result, want an error"


def bad_ranks(overload: Overload, compile: Compile) -> Iterator[str]:
    """What went wrong with one tensor after the other of the first form with a dimension more or less than it has."""
    call = Call(overload.forms[0], overload.types[0])
    example = next(examples(overload, 1, 1000))
    for position, given in enumerate(call.form.tensors):
        for axes in (f"{given.axes} 2", " ".join(given.names[:-1])) if given.names else ("2",):
            changed = _with_axes(call, position, axes)
            stored = tensors(overload, changed, example)
            if not _refused(overload, changed, stored):
                continue
            try:
                compiled = compile([changed])
            except NotRunHere:
                return
            except (Unsupported, Finding):
                continue
            if not _refuses(lambda compiled=compiled, stored=stored: _run(compiled, [stored])):
                yield f"{changed.form.title}: got a result, want an error"


def bad_types(overload: Overload, compile: Compile) -> Iterator[str]:
    """What went wrong in the types that PyTorch refuses: a crash, or an error that does not name the op."""
    form = overload.forms[0]
    for name in overload.refused_types if not form.types else ():
        try:
            compile([Call(form, name)])
        except NotRunHere:
            return
        except Unsupported as error:
            if overload.name.split(".")[1].strip("_") not in str(error):
                yield f"{name}: the error does not name the op: {error}"
        except Finding as error:
            yield f"{name}: {error}"


def _spoilt(call: Call, position: int) -> tuple[int, ...]:
    """Numbers that may not stand in a tensor; which of them, PyTorch is asked. Floats may be anything."""
    given = call.form.tensors[position]
    dtype = call.dtype_of(given)
    if dtype.is_floating_point:
        return ()
    if dtype == torch.bool:
        return (0, 1)
    index = given.dtype == "i64" and given.fill is not None and given.index
    return (0, 1, BEYOND) if index else (0, 1)


def _with_axes(call: Call, position: int, axes: str) -> Call:
    """The call with other axes for one tensor; values of its own kind may need the rank it has, zeros do not."""
    given = list(call.form.tensors)
    fill = given[position].fill and _zeros
    given[position] = replace(given[position], axes=axes, fill=fill)
    return replace(call, form=replace(call.form, tensors=tuple(given), title=f"tensor {position} as [{axes}]"))


def _zeros(_: object, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _run(compiled: Compiled, given: Sequence[Sequence[torch.Tensor]]) -> object:
    return compiled.run(*(tensor for own in given for tensor in own), threads=2)


def _refused(overload: Overload, call: Call, stored: list[torch.Tensor]) -> bool:
    """Whether PyTorch raises."""
    return _refuses(lambda: golden.eager(overload, call.form, arguments(call, stored)))


def _refuses(run: Callable[[], object]) -> bool:
    try:
        run()
    except REFUSALS:
        return True
    return False
