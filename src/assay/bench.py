"""The bench: cases laid out for one backend, each compiled once per process and ready to be run on examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from assay.backends.protocol import Backend, Compiled, NotRunHere, Program, TargetStatus
from assay.bounds import Setting
from assay.case import Case, Example, materialise
from assay.formats import accumulator
from assay.matrix import EVERYTHING, Cell, Matrix
from assay.spec import OpSpec
from assay.strategies.shapes import Dims
from assay.strategies.values import ZERO_MEAN

#: Operations one drawn example may cost: about a millisecond natively, a few under an emulator.
NATIVE_LIMIT = 1 << 19
EMULATED_LIMIT = 1 << 17
EMULATORS = ("qemu", "bochs")


def native(status: TargetStatus) -> bool:
    """Whether the target runs on this machine's own CPU."""
    return status.runs and not status.executor.startswith(EMULATORS)


def widest(statuses: Iterable[TargetStatus]) -> TargetStatus | None:
    """Of the native targets the one with the widest vectors, the first of several; of those checked by default if any
    is."""
    found = [status for status in statuses if native(status)]
    by_default = [status for status in found if status.facts.get("quick", True)]
    return max(by_default or found, key=lambda status: status.facts.get("vector_bits", 0), default=None)


@dataclass
class Subject:
    """One case compiled by one backend; a program with static sizes is compiled once per choice of them."""

    case: Case
    backend: Backend
    status: TargetStatus
    _compiled: dict[tuple[bool, tuple[int, ...]], Compiled] = field(default_factory=dict)

    def compiled(self, dims: Dims | None = None, *, plain: bool = False) -> Compiled:
        """The program for these static sizes (the first choice if not given); ``plain`` forbids repacking weights.

        Raises ``Unsupported`` or ``NotRunHere``.
        """
        if not self.status.runs:
            raise NotRunHere(self.status.reason or f"{self.status.name} does not run on this machine")
        spec = self.case.spec
        choices = spec.shapes.static or ({},)
        static = choices[0] if dims is None else {name: dims[name] for name in choices[0]}
        key = plain, tuple(static.values())
        if key not in self._compiled:
            self._compiled[key] = self.backend.compile(
                program(spec, self.case, static, plain=plain),
                self.case.target,
                quant=self.case.quant,
                variant=self.case.variant,
            )
        return self._compiled[key]

    def run(self, inputs: Sequence[torch.Tensor], dims: Dims, *, threads: int = 1, plain: bool = False) -> np.ndarray:
        """The one result, as float64 or int64. Raises ``Finding`` if the kernel crashed or hung."""
        (result,) = self.compiled(dims, plain=plain).run(*inputs, threads=threads)
        return result.to(torch.float64 if result.is_floating_point() else torch.int64).numpy()

    @property
    def artifact(self) -> str:
        """Hash of the machine code; empty before the first compilation."""
        return next((compiled.artifact for compiled in self._compiled.values()), "")

    @property
    def limit(self) -> int:
        """Operations a drawn example may cost here."""
        return NATIVE_LIMIT if native(self.status) else EMULATED_LIMIT

    def setting(self, example: Example) -> Setting:
        """What the bound needs to know of this case and example."""
        out = self.case.spec.out or self.case.format
        flushes = bool(self.status.facts.get("flushes_denormals", False))
        return Setting(out, accumulator(self.case.format), example.values in ZERO_MEAN, flushes, quant=self.case.quant)


def program(spec: OpSpec, case: Case, static: Dims, *, plain: bool = False) -> Program:
    """What the backend is asked to compile: the spec's module, with every size dynamic that is not static."""
    dims = spec.shapes.complete({**static, **spec.shapes.compile_dims()})
    example = tuple(materialise(spec, case.format, Example(dims)))
    return Program(spec.name, spec.module(), example, spec.dynamic, () if plain else spec.weights)


@dataclass
class Bench:
    """All subjects of one backend in this process."""

    backend: Backend
    statuses: Mapping[str, TargetStatus]
    subjects: dict[str, Subject] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend) -> Bench:
        return cls(backend, {status.name: status for status in backend.targets()})

    def subject(self, case: Case) -> Subject:
        """The case's subject, made on first use; compiled on first run."""
        if case.id not in self.subjects:
            self.subjects[case.id] = Subject(case, self.backend, self.statuses[case.target])
        return self.subjects[case.id]

    @property
    def reference(self) -> str | None:
        """The target all others are compared to bit by bit: the first that runs natively, else the first that runs."""
        running = sorted((s for s in self.statuses.values() if s.runs), key=lambda s: not native(s))
        return running[0].name if running else None

    def cases(self, specs: Mapping[str, OpSpec], selection: Selection) -> Iterator[Case]:
        """Every selected case, in order of spec, variant, dtype, mode, target."""
        modes = self.backend.modes()
        for spec in specs.values():
            variants = modes.get(spec.modes, ()) if spec.modes else ("",)
            for variant in (v for v in variants if not selection.variants or not v or v in selection.variants):
                for fmt in spec.dtypes:
                    for quant in (q for q in spec.quants if not selection.quants or q in selection.quants):
                        for target in selection.targets(self.statuses):
                            cell = Cell(spec.kind, spec.name, fmt.name, quant, variant, target)
                            if selection.wants(cell):
                                yield Case(spec.in_mode(quant), fmt, target, quant, variant)


@dataclass(frozen=True)
class Selection:
    """What the user asked for; empty means everything, but of targets only the quick ones unless ``thorough``."""

    names: tuple[str, ...] = ()
    quants: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    thorough: bool = False
    matrix: Matrix = EVERYTHING

    def wants(self, cell: Cell) -> bool:
        """Whether the matrix has the cell, and leaves it to a run as thorough as this one or to who names its mode."""
        return self.matrix.wanted(cell, thorough=self.whole)

    @property
    def whole(self) -> bool:
        """Whether nothing is left to a more thorough run: in such a run, and for who names a mode."""
        return self.thorough or bool(self.quants)

    def targets(self, statuses: Mapping[str, TargetStatus]) -> list[str]:
        """Targets selected by name, by ISA (its quick ones, or all if it has none), or ``all``.

        Raises ``ValueError`` naming what is unknown and what is known.
        """
        if not self.names:
            return [name for name, status in statuses.items() if self.thorough or quick(status)]
        chosen: set[str] = set()
        for asked in self.names:
            isa = [status for status in statuses.values() if status.isa == asked]
            found = {status.name for status in isa if quick(status)} or {status.name for status in isa}
            found |= {name for name in statuses if asked in (name, "all")}
            if not found:
                raise ValueError(f"selecting targets: target={asked!r}, expected one of {', '.join(statuses)}")
            chosen |= found
        return [name for name in statuses if name in chosen]


def quick(status: TargetStatus) -> bool:
    """Whether a target is checked where none is named."""
    return bool(status.facts.get("quick", True))
