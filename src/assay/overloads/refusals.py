"""What PyTorch refuses must be refused: indices that do not exist, and element types it has no such op in.

A clear error is right, a crash or a result is not. In a type that PyTorch lacks a result is no fault: there is nothing
to compare it with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from assay.backends.protocol import Compiled, Finding, NotRunHere, Unsupported
from assay.overloads import golden
from assay.overloads.examples import Example, arguments, tensors
from assay.overloads.program import Call
from assay.overloads.spec import Overload

#: No tensor is this long, and an address worked out from it is no one's.
BEYOND = 1 << 40
#: What a refusal may be; a Finding is none.
REFUSALS = (IndexError, RuntimeError, ValueError)


def bad_indices(overload: Overload, compiled: Compiled, calls: Sequence[Call], example: Example) -> str:
    """One index after the other is set out of range, in the first call that has any. Returns what went wrong, or ""."""
    given = [tensors(overload, call, example) for call in calls]
    number = next((i for i, call in enumerate(calls) if any(_is_index(call, j) for j in range(len(given[i])))), None)
    if number is None:
        return ""
    call = calls[number]
    for position, tensor in enumerate(given[number]):
        if not _is_index(call, position) or not tensor.numel():
            continue
        spoilt = torch.full_like(tensor, BEYOND)
        asked = [*given[number][:position], spoilt, *given[number][position + 1 :]]
        if not _refuses(lambda asked=asked: golden.eager(overload, call.form, arguments(call, asked))):
            continue
        stored = [asked if i == number else own for i, own in enumerate(given)]
        if not _refuses(lambda stored=stored: compiled.run(*(t for own in stored for t in own), threads=2)):
            return f"{call.form.title}: tensor {position} holds the index {BEYOND}: got a result, want an error"
    return ""


def bad_types(overload: Overload, compile: Callable[[Sequence[Call]], Compiled]) -> Iterator[str]:
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


def _is_index(call: Call, position: int) -> bool:
    given = call.form.tensors[position]
    return given.dtype == "i64" and given.fill is not None and given.index


def _refuses(run: Callable[[], object]) -> bool:
    try:
        run()
    except REFUSALS:
        return True
    return False
