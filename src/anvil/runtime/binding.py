"""From a plan to what an executor takes: the argument words of every row, for given sizes and addresses."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, cast

import numpy as np
import sympy

from anvil.dtypes import itemsize
from anvil.errors import InputError, SizeError
from anvil.runtime.plan import Buffer, Plan, Scalar, Size, View

_FLOAT_CODES = {"f32": "<f", "f64": "<d", "f16": "<e"}  # of struct.pack

# How the size functions that torch.export puts into expressions are computed on Python integers.
_INTEGER_FUNCTIONS: dict[str, Callable[..., float]] = {
    "FloorDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, divisor, modulus: a // divisor % modulus,
    "IntTrueDiv": lambda a, b: a / b,
    "TruncToInt": int,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "ToFloat": float,
    "FloatTrueDiv": lambda a, b: a / b,
    "Identity": lambda a: a,
}


def compile_sizes(exprs: Iterable[Size], symbols: tuple[str, ...]) -> Callable[..., list[int]]:
    """A function of the symbols' values, in order, that returns the value of every expression.

    Symbols are matched by name: torch.export and a lowering may attach different assumptions to one size.
    """
    function = _compile(tuple(exprs), symbols)
    return lambda *values: [int(v) for v in function(*values)]


@lru_cache(maxsize=4096)  # the same shapes are asked for at every call of a program
def _compile(exprs: tuple[Size, ...], symbols: tuple[str, ...]) -> Callable[..., list[Any]]:
    plain = [_by_name(expr) for expr in exprs]
    unknown = {str(s) for expr in plain if isinstance(expr, sympy.Expr) for s in expr.free_symbols} - set(symbols)
    if unknown:
        raise InputError(f"size depends on {sorted(unknown)}, expected only the plan's symbols {list(symbols)}")
    unique = {expr: index for index, expr in enumerate(dict.fromkeys(plain))}
    function = sympy.lambdify([sympy.Symbol(s) for s in symbols], list(unique), modules=[_INTEGER_FUNCTIONS, "math"])
    which = [unique[expr] for expr in plain]

    def compute(*values: int) -> list[Any]:
        found = function(*values)
        return [found[index] for index in which]

    return compute


def _by_name(expr: Size) -> Size:
    if not isinstance(expr, sympy.Expr):
        return int(expr)
    return cast(sympy.Expr, expr.xreplace({s: sympy.Symbol(str(s)) for s in expr.free_symbols}))


def concrete(view: View, values: Mapping[str, int]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Offset, sizes and strides of a view, in elements, for the given sizes."""
    flat = compile_sizes((view.offset, *view.sizes, *view.strides), tuple(values))(*values.values())
    rank = len(view.sizes)
    return flat[0], tuple(flat[1 : rank + 1]), tuple(flat[rank + 1 :])


def _bytes_of(buffer: Buffer) -> Size:
    count: Size = itemsize(buffer.dtype)
    for size in buffer.shape:
        count = count * size
    return count


@dataclass(frozen=True)
class _Group:
    """Words of one type that depend on the same set of symbols: ``words[where] = values(...)[which]``."""

    symbols: frozenset[str]
    values: Callable[..., list[int]]
    where: np.ndarray
    which: np.ndarray


class Binding:
    """The words of a plan. Sizes and addresses can be set again and again; only what depends on them is rewritten.

    ``words`` is the int64 argument block an executor reads (layout in :mod:`anvil.kernels.base`), ``first_word`` the
    index of each row's first word, ``values`` and ``addresses`` what was set last.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.values: dict[str, int] = {}
        self.addresses: dict[str, int] = {}
        words, symbolic, pointers = _flatten(plan)
        self.words = np.array(words[0], dtype=np.int64)
        self.first_word = np.array(words[1], dtype=np.int64)
        self._groups = _group(symbolic, plan.symbols)
        self._pointers = {name: np.array(where, dtype=np.int64) for name, where in pointers.items()}
        self._dims = compile_sizes([d for buffer in plan.buffers.values() for d in buffer.shape], plan.symbols)
        self._nbytes = compile_sizes([_bytes_of(buffer) for buffer in plan.buffers.values()], plan.symbols)
        self._required = compile_sizes([requirement.size for requirement in plan.requirements], plan.symbols)

    def bind(self, values: Mapping[str, int]) -> None:
        """Set the run-time sizes. Raises :class:`InputError` when one is missing, and :class:`SizeError` where an op
        of the plan has no result for them."""
        missing = set(self.plan.symbols) - set(values)
        if missing:
            raise InputError(f"binding plan={self.plan.name}: no value for the sizes {sorted(missing)}")
        self._require(values)
        changed = {s for s in self.plan.symbols if self.values.get(s) != values[s]}
        self.values = {s: int(values[s]) for s in self.plan.symbols}
        ordered = list(self.values.values())
        for group in self._groups:
            if group.symbols & changed:
                self.words[group.where] = np.array(group.values(*ordered), dtype=np.int64)[group.which]

    def place(self, addresses: Mapping[str, int]) -> None:
        """Set the base addresses of the named buffers; names that no row uses are ignored."""
        self.addresses.update(addresses)
        for name, address in addresses.items():
            where = self._pointers.get(name)
            if where is not None:
                self.words[where] = address

    def shapes(self, values: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Concrete shape of every buffer for the given sizes. Raises :class:`SizeError` where an op of the plan has no
        result for them: what it requires is not so, or a size comes out negative."""
        self._require(values)
        flat = iter(self._dims(*(values[s] for s in self.plan.symbols)))
        found = {name: tuple(islice(flat, len(buffer.shape))) for name, buffer in self.plan.buffers.items()}
        for name, shape in found.items():
            if any(size < 0 for size in shape):
                raise SizeError(f"running plan={self.plan.name}: {name} has shape {shape}, expected no negative size")
        return found

    def _require(self, values: Mapping[str, int]) -> None:
        if self.plan.requirements:
            self.plan.require_sizes(self._required(*(int(values[s]) for s in self.plan.symbols)))

    def nbytes(self, values: Mapping[str, int]) -> dict[str, int]:
        """Bytes of every buffer for the given sizes."""
        return dict(zip(self.plan.buffers, self._nbytes(*(values[s] for s in self.plan.symbols)), strict=True))

    def program(self, functions: Mapping[str, int]) -> np.ndarray:
        """int64 [rows, 2]: address of each row's packed function and the index of its first word."""
        addresses = np.array([functions[row.kernel] for row in self.plan.rows], dtype=np.int64)
        return np.ascontiguousarray(np.stack([addresses, self.first_word], axis=1))


def _flatten(
    plan: Plan,
) -> tuple[tuple[list[int], list[int]], list[tuple[int, str, sympy.Expr]], dict[str, list[int]]]:
    """All words with zeros where something is still open, and where sizes and addresses go."""
    words: list[int] = []
    first: list[int] = []
    symbolic: list[tuple[int, str, sympy.Expr]] = []
    pointers: dict[str, list[int]] = {}

    def put(value: Size | float, dtype: str = "index") -> None:
        if isinstance(value, sympy.Expr) and value.free_symbols:
            symbolic.append((len(words), dtype, value))
            words.append(0)
        else:
            words.append(word(float(value) if dtype in _FLOAT_CODES else int(value), dtype))

    for row in plan.rows:
        first.append(len(words))
        for arg in _checked(plan, row.kernel, row.args, row.node):
            if isinstance(arg, View):
                pointers.setdefault(arg.buffer, []).extend((len(words), len(words) + 1))
                words.extend((0, 0))
                for value in (arg.offset, *arg.sizes, *arg.strides):
                    put(value)
            else:
                put(arg.value, arg.dtype)
    return (words, first), symbolic, pointers


def _checked(plan: Plan, kernel: str, args: tuple[Any, ...], node: str) -> tuple[View | Scalar, ...]:
    """``args``, if they are what the kernel takes."""
    params = plan.kernels[kernel].params
    got = [(len(a.sizes) if isinstance(a, View) else -1, _dtype(plan, a)) for a in args]
    want = [(p.rank, p.dtype) for p in params]
    if got != want:
        raise InputError(
            f"plan={plan.name} node={node}: kernel={kernel} takes (rank, dtype) {want}, but the row passes {got}"
        )
    return args


def _dtype(plan: Plan, arg: View | Scalar) -> str:
    return plan.buffers[arg.buffer].dtype if isinstance(arg, View) else arg.dtype


def word(value: float, dtype: str) -> int:
    """A scalar as one word: an integer as it is, the bits of a float zero-extended."""
    if dtype not in _FLOAT_CODES:
        return int(value)
    return int.from_bytes(struct.pack(_FLOAT_CODES[dtype], value), "little")


def _group(symbolic: list[tuple[int, str, sympy.Expr]], symbols: tuple[str, ...]) -> list[_Group]:
    """Words by type and the set of symbols they depend on; equal expressions are computed once."""
    alike: dict[tuple[frozenset[str], str], list[tuple[int, sympy.Expr]]] = {}
    for where, dtype, expr in symbolic:
        alike.setdefault((frozenset(map(str, expr.free_symbols)), dtype), []).append((where, expr))
    groups = []
    for (names, dtype), entries in alike.items():
        unique = {expr: i for i, expr in enumerate(dict.fromkeys(expr for _, expr in entries))}
        groups.append(
            _Group(
                symbols=names,
                values=_words_of(_compile(tuple(unique), symbols), dtype),
                where=np.array([where for where, _ in entries], dtype=np.int64),
                which=np.array([unique[expr] for _, expr in entries], dtype=np.int64),
            )
        )
    return groups


def _words_of(function: Callable[..., list[Any]], dtype: str) -> Callable[..., list[int]]:
    return lambda *values: [word(value, dtype) for value in function(*values)]
