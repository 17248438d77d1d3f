"""The text of a failure: what, how much, where, against which yardstick, and the command that shows it again."""

from __future__ import annotations

import inspect
from pathlib import Path

from assay.case import Case, Example
from assay.compare import Verdict
from assay.spec import OpSpec


def mismatch(case: Case, example: Example, verdict: Verdict, **lines: str) -> str:
    """The report of one result outside its bound; ``lines`` follow the worst element, see :func:`text`."""
    outside = "outside its bound" if verdict.kind == "bound" else f"wrong {verdict.kind}"
    return text(case, example, outside, worst=worst(case.spec, verdict), **lines)


def text(case: Case, example: Example, what: str, **lines: str) -> str:
    """A report of any kind: a headline with the example's id, then labelled lines."""
    head = f"{case.id}-{example.suffix(case.spec)}: {what}"
    return "\n".join([head, *(f"  {label:<8} {line}" for label, line in lines.items() if line)])


def worst(spec: OpSpec, verdict: Verdict) -> str:
    """``3.1 ulp, allowed 2.0 (ops/rms_norm.py:14) at [1, 4, 32]: got 0.00390625 want 0.0038757``.

    Where nothing is allowed, the bound's line is left out.
    """
    if not verdict.worst and verdict.wrong.ndim:
        return verdict.kind
    values = f"at {list(verdict.worst)}: got {verdict.got:.9g} want {verdict.want:.9g}"
    if verdict.kind != "bound":
        return values
    ulp = verdict.error / verdict.ulps if verdict.ulps else 0.0
    allowed = verdict.allowed / ulp if ulp else 0.0
    rule = f"{allowed:.3g} ({source(spec)})" if verdict.allowed else "none"
    return f"{verdict.ulps:.3g} ulp, allowed {rule} {values}"


def inputs(example: Example) -> str:
    return f"{example.values} values, {example.layout}"


def source(spec: OpSpec) -> str:
    """Where the bound stands: the bound function's file and line, relative to the working directory."""
    bound = inspect.unwrap(getattr(spec.bound, "func", spec.bound))
    path = Path(inspect.getsourcefile(bound) or "?")
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    return f"{path}:{inspect.getsourcelines(bound)[1]}"


def replay(nodeid: str, case: Case, example: Example, options: str = "") -> str:
    """The command that runs exactly this example again."""
    test = nodeid.split("[")[0]
    return f"pytest '{test}[{case.id}-{example.suffix(case.spec)}]' --seed {example.code}{options}"
