"""pytest plugin: turns specs into cases, cases into tests, and every outcome into a recorded row.

Tests ask for the fixture ``judge`` and say which cases they want: ``@pytest.mark.cases("op", examples=60)``.
"""

from __future__ import annotations

import datetime
import functools
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from assay import backends, exceptions, matrix, sharding
from assay.backends.protocol import Finding, NotRunHere, Unsupported
from assay.bench import Bench, Selection, quick
from assay.case import Case, Example
from assay.compare import Mismatch
from assay.errors import UsageError
from assay.explore import PROFILES
from assay.judge import Judge
from assay.overloads import select, spec
from assay.overloads.check import OverloadCheck
from assay.overloads.spec import Overload
from assay.record import provenance
from assay.record.controller import CASE, Controller
from assay.record.facts import facts, key_of
from assay.record.rows import CaseKey, Run
from assay.record.writer import RecordError, Writer
from assay.spec import OpSpec, registry
from assay.strategies.shapes import is_suffix
from assay.tokens.check import ModelCheck
from assay.worst import Keeper, stored_examples

BENCH = pytest.StashKey[Bench]()
OPS = Path("ops")
WORST = OPS / "worst.jsonl"
ANVIL = "anvil"
FEWER = 4  # times fewer examples against the golden where the reference target's bits are asked for as well


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("assay")
    group.addoption("--backend", default=ANVIL, help="compiler under test: an adapter's name or a module with BACKEND")
    group.addoption("--target", action="append", default=[], help="target, ISA or all; repeatable")
    group.addoption("--quant", action="append", default=[], help="quantisation mode, repeatable; default all")
    group.addoption("--variant", action="append", default=[], help="kernel variant, repeatable; default all")
    group.addoption("--profile", default="quick", choices=sorted(PROFILES), help="how hard to look (default quick)")
    group.addoption("--seed", type=lambda text: int(text, 0), default=0, help="base seed, or the seed of a replay")
    group.addoption("--shard", default="1/1", help="i/n: run the i-th of n parts; the parts add up to the whole")
    group.addoption("--record", metavar="DIR", help="append a run record (JSON Lines) in DIR")


def option(config: pytest.Config, name: str) -> Any:
    return config.getoption(name, default=None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cases(kind, examples, **needs): run once for every selected case of this kind")
    shard(config)
    if option(config, "--backend") != ANVIL or option(config, "--target"):
        bench(config)  # what was asked for must exist; without options it is looked up when a test needs it
    list(replays(config))
    if not hasattr(config, "workerinput"):
        if PROFILES[option(config, "--profile")].random and not option(config, "--seed"):
            config.option.seed = secrets.randbits(32)  # recorded, and handed to the workers with the other options
        run = run_row(config)
        controller = Controller(writer(config, run), lambda: known_keys(config), run)
        config.pluginmanager.register(controller, "assay-controller")
        if option(config, "--profile") == "deep":
            config.pluginmanager.register(Keeper(config.rootpath / WORST), "assay-worst")


def bench(config: pytest.Config) -> Bench:
    """The bench of this process, made when the first test asks for a case. Bad options are usage errors."""
    if BENCH not in config.stash:
        try:
            config.stash[BENCH] = Bench.of(backends.load(option(config, "--backend")))
            selection(config).targets(config.stash[BENCH].statuses)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        for mark in sorted({mark for case in all_cases(config) for mark in case.marks}):
            config.addinivalue_line("markers", f"{mark}: cases with this part in their id")
        for mark in sorted({"overload", *(overload.mark for overload in overloads(config).values())}):
            config.addinivalue_line("markers", f"{mark}: overloads of this name")
    return config.stash[BENCH]


def selection(config: pytest.Config) -> Selection:
    asked = (tuple(option(config, name)) for name in ("--target", "--quant", "--variant"))
    thorough = option(config, "--profile") != "quick"
    return Selection(*asked, thorough=thorough, matrix=matrix.load(config.rootpath / OPS / "matrix.toml"))


def specs(config: pytest.Config) -> dict[str, OpSpec]:
    return registry(config.rootpath / OPS)


def overloads(config: pytest.Config) -> dict[str, Overload]:
    return spec.registry(config.rootpath / OPS)


def all_cases(config: pytest.Config) -> list[Case]:
    return list(bench(config).cases(specs(config), selection(config)))


def shard(config: pytest.Config) -> tuple[int, int]:
    """(i, n), 1 ≤ i ≤ n. Anything else is a usage error."""
    text = option(config, "--shard")
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"reading the shard: --shard={text!r}, expected i/n with 1 <= i <= n, e.g. 2/4")
    return int(part), int(parts)


def run_row(config: pytest.Config) -> Run:
    return provenance.run(
        seed=option(config, "--seed"),
        command=shlex.join(["pytest", *sys.argv[1:]]),
        backend=option(config, "--backend"),
        profile=option(config, "--profile"),
    )


def writer(config: pytest.Config, run: Run) -> Writer | None:
    folder = option(config, "--record")
    try:
        return Writer(Path(folder) / f"{run.run}.jsonl") if folder else None
    except RecordError as error:
        pytest.exit(str(error), returncode=error.exit_code)


def known_keys(config: pytest.Config) -> dict[str, CaseKey]:
    """Keys by case id: what the controller knows of a test whose worker died before it could report."""
    try:
        return {case.id: key_of(case) for case in all_cases(config)}
    except pytest.UsageError:
        return {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "overload" in metafunc.fixturenames:
        profile = PROFILES[option(metafunc.config, "--profile")]
        targets = selection(metafunc.config).targets(bench(metafunc.config).statuses)
        params = select.overload_params(overloads(metafunc.config), targets, profile)
        metafunc.parametrize("overload", params, indirect=True)
    mark = metafunc.definition.get_closest_marker("cases")
    if mark is None or "judge" not in metafunc.fixturenames:
        return
    (kind,) = mark.args
    here, needs = bench(metafunc.config), {k: v for k, v in mark.kwargs.items() if k != "examples"}
    every = every_check(metafunc.config)
    cases = [c for c in all_cases(metafunc.config) if c.spec.kind == kind and wanted(c, here, every=every, **needs)]
    params = [pytest.param((case, None), id=case.id, marks=marks(case)) for case in cases]
    params += [
        pytest.param((case, example), id=f"{case.id}-{example.suffix(case.spec)}", marks=marks(case))
        for test, case, example in replays(metafunc.config)
        if test == metafunc.definition.name and case in cases
    ]
    metafunc.parametrize("judge", params, indirect=True)


def every_check(config: pytest.Config) -> bool:
    """Whether no case is left to its bits alone: in the deep profile, and of targets that were named."""
    return bool(option(config, "--target")) or option(config, "--profile") == "deep"


def wanted(
    case: Case, here: Bench, *, has: str = "", across: bool = False, everywhere: bool = False, every: bool = True
) -> bool:
    """``has``: a field of the case or its spec that is set. ``across``: the target is compared to the reference one.

    ``everywhere``: a check of all cases. Those that are not checked :func:`in_full` give the reference target's bits,
    so no other check can say more of them; it runs on them where ``every`` check is asked for.
    """
    if not (everywhere or every or in_full(case, here)):
        return False
    return (not has or bool(getattr(case, has, None) or getattr(case.spec, has, None))) and not (
        across and case.target == here.reference
    )


def in_full(case: Case, here: Bench) -> bool:
    """Whether a case has every check: on the reference target, and without a quantisation mode on all quick targets.

    The others are judged by their bits, which must be the reference target's for every kind of values and layout.
    """
    return case.target == here.reference or (case.quant == "fp32" and quick(here.statuses[case.target]))


def marks(case: Case) -> list[pytest.MarkDecorator]:
    return [getattr(pytest.mark, mark) for mark in case.marks]


def replays(config: pytest.Config) -> Iterator[tuple[str, Case, Example]]:
    """Single examples addressed on the command line: ``test_x[<case id>-<shape>] --seed <code>``.

    Yields test name, case, example. Sizes that are not the op's are a usage error.
    """
    for argument in config.args:
        test, found, inside = argument.partition("::")[2].partition("[")
        for case in all_cases(config) if found else ():
            suffix = inside.removesuffix("]").removeprefix(f"{case.id}-")
            if suffix != inside.removesuffix("]") and is_suffix(suffix):
                try:
                    yield test, case, Example.parse(case.spec, suffix, option(config, "--seed"))
                except ValueError as error:
                    raise pytest.UsageError(str(error)) from error


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one shard, and drop tests that no case has a need for (pytest would show each as a skip)."""
    part, parts = shard(config)
    items[:] = [item for item in items if not (item.get_closest_marker("cases") and "[NOTSET]" in item.name)]
    mine = sharding.share([unit(item) for item in items], part, parts)
    kept = [item for item, chosen in zip(items, mine, strict=True) if chosen]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def unit(item: pytest.Item) -> str:
    """Tests that belong into one shard: those of an op or layer, whose program is captured once for all its cases."""
    params: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    if "judge" in params:
        return params["judge"][0].spec.name
    return params["overload"][0].name if "overload" in params else item.nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of a case on one worker, so that it is compiled once."""
    from assay.record.scheduling import CaseScheduling

    return CaseScheduling(config, log) if option(config, "dist") == "load" else None


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """The judge of this test's case."""
    case, example = request.param
    config, mark, here = request.config, request.node.get_closest_marker("cases"), bench(request.config)
    few = not every_check(config) and not in_full(case, here) and not mark.kwargs.get("across")
    return Judge(
        bench=here,
        case=case,
        profile=PROFILES[option(config, "--profile")],
        nodeid=request.node.nodeid.split("[")[0],
        options="".join(f" {name} {option(config, name)}" for name in ("--backend",) if option(config, name) != ANVIL),
        seed=option(config, "--seed"),
        examples=max(1, mark.kwargs["examples"] // FEWER) if few else mark.kwargs["examples"],
        replayed=example,
        stored=stored_examples(config.rootpath / WORST, case.spec),
        allowances=allowances(config, case, request.node.originalname),
    )


def allowances(config: pytest.Config, case: Case, test: str) -> tuple[exceptions.Allowance, ...]:
    """The exceptions for one check of one case; an expired one fails it."""
    try:
        return exceptions.holding(config.rootpath / OPS / exceptions.FILE, case.id, test, datetime.date.today())
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def overload(request: pytest.FixtureRequest) -> OverloadCheck:
    """The check of one overload on one target."""
    config, (found, target) = request.config, request.param
    profile, folder = PROFILES[option(config, "--profile")], config.rootpath / OPS
    return OverloadCheck(bench(config), found, target, profile, folder, option(config, "--seed"))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Run a test with a judge or a model check; put what it saw into the report, whatever the outcome."""
    seen = recorder(pyfuncitem)
    if seen is None:
        return (yield)
    status, reason = "ok", ""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # examples are small: a second thread only costs, 20 times on two cores
    try:
        result = yield
        reason = excused(pyfuncitem)
        return result
    except (Mismatch, Finding) as error:
        status, reason = "failed", str(error)
    except (Unsupported, NotRunHere) as error:
        status, reason = ("unsupported" if isinstance(error, Unsupported) else "not_run"), str(error)
    except pytest.skip.Exception as error:
        status, reason = "not_run", str(error)
        raise
    except BaseException as error:  # a time limit and an interrupt are no Exception, and nothing was compared
        status, reason = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        torch.set_num_threads(before)
        pyfuncitem.user_properties.append((CASE, seen(status, reason)))
    if status == "failed":
        pytest.fail(reason, pytrace=False)
    pytest.skip(f"{status}: {reason}")


def excused(item: pytest.Function) -> str:
    """What exceptions covered in a test that passed. Raises ``Mismatch`` for one that was not needed."""
    judges = [value for value in item.funcargs.values() if isinstance(value, Judge)]
    return "; ".join(text for judge in judges if (text := judge.require_exceptions_needed()))


def recorder(item: pytest.Function) -> Callable[[str, str], Any] | None:
    """What makes the rows of a test out of its status and reason; None for a test that checks no case."""
    for value in item.funcargs.values():
        if isinstance(value, Judge):
            return functools.partial(facts, value)
        if isinstance(value, (ModelCheck, OverloadCheck)):
            return value.facts
    return None
