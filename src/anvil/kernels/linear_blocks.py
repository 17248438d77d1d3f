"""Matrix product with quantised weights: y = x w^T (+ bias), activations and accumulation in f32.

x: f32 [M, K]; w: i8 [P, bytes], the blob of a :class:`~anvil.kernels.blocks.BlockFormat`; bias: f32 [N]; y: f32 [M, N].
Weights are decoded in registers; nothing is ever expanded to memory but a tile of ``_DEPTH`` inputs of one panel.

Every output is computed in one order, whatever M, the target and the number of threads. From total = bias or 0:

* formats with a scale, group after group: part = 0; part = fma(x[k], code[k], part) for the k of the group in turn;
  total = fma(scale, part, total). The codes are integers, so a weight enters exactly.
* formats without: total = fma(x[k], weight[k], total) for k = 0, 1, .., K-1; the weight is rounded to f32 once.

M = 1 streams ``_STREAMS`` panels at a time through registers. For M > 1 a panel's tile is expanded on the stack once
per block of rows, beside the block of x. Error against the dequantised weights: 4 sqrt(K) u S (docs/correctness.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from anvil.kernels.base import Kernel
from anvil.kernels.blocks import SWIFT_LIMIT, At, BlockFormat
from anvil.kernels.define import Argument, define, memref
from anvil.kernels.dsl import (
    LANES,
    Ref,
    Val,
    ceil_div,
    const,
    eq,
    first_lanes,
    fma,
    greater,
    index,
    lesser,
    magnitude,
    ne,
    select,
    splat,
    tree,
)
from anvil.kernels.dsl import stack as on_stack
from anvil.kernels.flow import choose, each_vector, for_, if_, if_else, in_pieces, my_range
from anvil.kernels.panel import Panel, panel_of
from anvil.kernels.panel_output import Output, Vectors
from anvil.targets.base import Target

_STREAMS = 2  # panels a matrix-vector product reads at a time
_DEPTH = 64  # inputs of x and of a panel on the stack at a time
_LINE = 64  # bytes of a cache line
_ROWS = 24  # about as many rows of x on the stack at a time


@dataclass(frozen=True)
class Weights:
    """The blob of a format, read panel by panel."""

    format: BlockFormat
    blob: Ref
    panel: Panel
    target: Target

    def at(self, which: Val, group: Val) -> list[At]:
        """The places of one group, one per vector of a panel."""
        where = range(self.panel.vectors)
        return [At(self.format, self.blob, self.panel, self.target, which, group, vector) for vector in where]

    def prefetch(self, which: Val, group: Val) -> None:
        """Ask for as much of a panel as a group takes, at about its place."""
        ask_for(
            self.blob, which, group, self.format.block_bytes(self.panel.width) * self.format.group // self.format.block
        )

    def expand(self, which: Val, group: Val, tile: Tile, row: Val) -> None:
        """Write the values of one group to the rows of ``tile`` from ``row``, and the scale, if there is one."""
        places = self.at(which, group)
        parameters = [self.format.parameters(at) for at in places]
        with for_(0, self.format.group // self.format.step) as step:
            for at, own in zip(places, parameters, strict=True):
                codes = self.format.codes(at, step.index)
                for k in range(self.format.step):
                    value = self.format.value(codes, k, own)
                    line = row + step.index * self.format.step + k
                    tile.values.store(value, line, at.vector * self.panel.lanes)
        if self.format.scale is not None:
            for at, own in zip(places, parameters, strict=True):
                line = row // self.format.group
                tile.scales.store(self.format.scale(own), line, at.vector * self.panel.lanes)


@dataclass(frozen=True)
class Tile:
    """Some groups of one panel on the stack: values [inputs, width], scales [groups, width]."""

    values: Ref
    scales: Ref

    @staticmethod
    def make(format_: BlockFormat, panel: Panel, depth: int) -> Tile:
        groups = depth // format_.group if format_.scale else 1
        return Tile(on_stack("f32", depth, panel.width), on_stack("f32", groups, panel.width))


@dataclass(frozen=True)
class _Operands:
    x: Ref
    w: Weights
    out: Output
    tile: Tile

    @property
    def panel(self) -> Panel:
        return self.w.panel


def build_for(target: Target, format_: BlockFormat, has_bias: bool = False) -> Kernel:
    """The matrix product for weights of ``format_``."""
    panel, tile_rows = panel_of(target), target.gemm_tile[0]
    block_rows = max(_ROWS // tile_rows, 1) * tile_rows

    def product(x: Ref, w: Ref, bias: Ref | None, y: Ref, tid: Val, nthreads: Val) -> None:
        edge = on_stack("f32", tile_rows, panel.width)
        block = on_stack("f32", block_rows, _DEPTH)
        weights = Weights(format_, w, panel, target)
        operands = _Operands(x, weights, Output(y, bias, panel, edge), Tile.make(format_, panel, _DEPTH))
        streams = eq(x.dim(0), 1) if format_.swift is None else _one_moderate_row(x)
        with if_else(streams) as (vector, matrix):
            with vector:
                _matrix_vector(operands, tid, nthreads)
            with matrix:
                _matrix_matrix(operands, block, block_rows, tile_rows, tid, nthreads)

    def plain(x: Ref, w: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        product(x, w, None, y, tid, nthreads)

    arguments = [
        memref("x", "in", "f32", 2),
        blob_argument(format_, panel),
        *([memref("bias", "in", "f32", 1)] if has_bias else []),
        memref("y", "out", "f32", 2),
    ]
    edges = [("N", panel.width), ("N", _STREAMS * panel.width), ("M", tile_rows), ("K", format_.group), ("K", _DEPTH)]
    name = f"linear_{format_.name}" + ("_bias" if has_bias else "")
    return define(name.replace("-", "_"), arguments, product if has_bias else plain, edges=edges)


def blob_argument(format_: BlockFormat, panel: Panel) -> Argument:
    """The parameter that takes a weight of ``format_``."""
    return memref("w", "in", "i8", 2, layout=format_.layout(panel))


def ask_for(blob: Ref, panel: Val, part: Val, size: int) -> None:
    """Prefetch part number ``part`` of a panel that is cut into parts of ``size`` bytes."""
    for line in range(0, size, _LINE):
        blob.prefetch(panel, part * size + line)


def next_panel(panel: Val, streams: int, end: Val) -> Val:
    """The panel that follows ``panel`` in its stream; itself, if there is none.

    A stream jumps over the panels of the others, and a panel is short: hardware that looks ahead by addresses is wrong
    at its end. So a stream asks for the next panel while it reads one, which the caches hold as long.
    """
    return select(panel + streams < end, panel + streams, panel)


def _one_moderate_row(x: Ref) -> Val:
    """Whether x has one row, and that no number that ``swift`` values might overflow with (NaN is none)."""

    def moderate() -> Val:
        whole = x.dim(1) - x.dim(1) % LANES
        with for_(0, whole, LANES, carry=const(0.0, "f32", lanes=LANES)) as loop:
            loop.next(greater(magnitude(x.load(0, loop.index, lanes=LANES)), loop.carry))
        rest = x.load(0, whole, lanes=LANES, mask=first_lanes(x.dim(1) - whole))
        return tree(greater(magnitude(rest), loop.results), greater) < SWIFT_LIMIT

    single = eq(x.dim(0), 1)
    return choose(single, moderate, lambda: single, like=single)


def _matrix_vector(o: _Operands, tid: Val, nthreads: Val) -> None:
    format_ = o.w.format
    whole, rest = o.x.dim(1) // format_.group, o.x.dim(1) % format_.group

    def stream(start: Val, count: int) -> None:
        panels = [start + offset for offset in range(count)]
        ahead = [next_panel(panel, count, end) for panel in panels]
        with for_(0, whole, carry=[o.out.start(panel) for panel in panels]) as loop:
            for panel in ahead:
                o.w.prefetch(panel, loop.index)
            loop.next(_one_group(o, panels, loop.index, loop.carry))
        last = choose(
            ne(rest, 0),
            lambda: [_part_of_group(o, panel, whole, rest, t) for panel, t in zip(panels, loop.results, strict=True)],
            lambda: loop.results,
            like=loop.results,
        )
        for panel, total in zip(panels, last, strict=True):
            o.out.store([total], index(0), panel)

    first, end = my_range(o.w.blob.dim(0), tid, nthreads)
    in_pieces(first, end, _STREAMS, stream)


def _one_group(o: _Operands, panels: list[Val], group: Val, totals: list[Vectors]) -> list[Vectors]:
    """The totals of some panels after one more whole group, decoded in registers."""
    format_ = o.w.format
    way = format_.swift or format_
    places = [o.w.at(panel, group) for panel in panels]
    parameters = [[format_.parameters(at) for at in own] for own in places]

    def step(number: Val, parts: list[Vectors]) -> list[Vectors]:
        codes = [[way.codes(at, number) for at in own] for own in places]
        for k in range(format_.step):
            x = splat(o.x.load(0, group * format_.group + number * format_.step + k), o.panel.lanes)
            parts = [
                [fma(x, way.value(c, k, p), part) for c, p, part in zip(*own, strict=True)]
                for own in zip(codes, parameters, parts, strict=True)
            ]
        return parts

    parts = [o.out.zeros() for _ in panels] if format_.scale else totals
    if format_.group == format_.step:
        parts = step(index(0), parts)
    else:
        with for_(0, format_.group // format_.step, carry=parts) as loop:
            loop.next(step(loop.index, loop.carry))
        parts = loop.results
    if way.scale is None:
        return parts
    return [
        [fma(way.scale(p), part, total) for p, part, total in zip(*own, strict=True)]
        for own in zip(parameters, parts, totals, strict=True)
    ]


def _part_of_group(o: _Operands, panel: Val, group: Val, inputs: Val, total: Vectors) -> Vectors:
    """``total`` after the first ``inputs`` inputs of a last group that has more than x."""
    o.w.expand(panel, group, o.tile, index(0))
    first = group * o.w.format.group
    with for_(0, inputs, carry=o.out.zeros() if o.w.format.scale else total) as loop:
        x = splat(o.x.load(0, first + loop.index), o.panel.lanes)
        values = o.panel.load(o.tile.values, loop.index)
        loop.next([fma(x, value, part) for value, part in zip(values, loop.carry, strict=True)])
    if o.w.format.scale is None:
        return loop.results
    scales = o.panel.load(o.tile.scales, 0)
    return [fma(scale, part, old) for scale, part, old in zip(scales, loop.results, total, strict=True)]


def _matrix_matrix(o: _Operands, block: Ref, block_rows: int, tile_rows: int, tid: Val, nthreads: Val) -> None:
    panels = o.w.blob.dim(0)
    across = lesser(nthreads, greater(panels, index(1)))
    down = nthreads // across
    with if_(tid < across * down):
        first_panel, last_panel = my_range(panels, tid % across, across)
        first_row, last_row = my_range(o.x.dim(0), tid // across, down)
        _initialise(o, first_row, last_row, first_panel, last_panel)
        with for_(0, o.x.dim(1), _DEPTH) as k, for_(first_row, last_row, block_rows) as m:
            depth = lesser(o.x.dim(1) - k.index, index(_DEPTH))
            count = lesser(last_row - m.index, index(block_rows))
            _copy_block(o.x, block, m.index, count, k.index, depth)
            with for_(first_panel, last_panel) as panel:
                with for_(0, ceil_div(depth, o.w.format.group)) as group:
                    own = k.index // o.w.format.group + group.index
                    o.w.expand(panel.index, own, o.tile, group.index * o.w.format.group)

                def tile(start: Val, rows: int, panel: Val = panel.index) -> None:
                    place = [m.index + start + row for row in range(rows)]
                    totals = _multiply(o, block, start, rows, depth, o.out.load(place, panel))
                    o.out.store(totals, place[0], panel)

                in_pieces(0, count, tile_rows, tile)


def _multiply(o: _Operands, block: Ref, start: Val, rows: int, depth: Val, totals: list[Vectors]) -> list[Vectors]:
    """Totals of some rows after the ``depth`` inputs that lie in ``block`` and in the tile."""

    def chain(first: Val | int, last: Val, parts: list[Vectors]) -> list[Vectors]:
        with for_(first, last, carry=parts) as loop:
            values = o.panel.load(o.tile.values, loop.index)
            x = [splat(block.load(start + row, loop.index), o.panel.lanes) for row in range(rows)]
            pairs = zip(x, loop.carry, strict=True)
            loop.next([[fma(own, v, part) for v, part in zip(values, parts, strict=True)] for own, parts in pairs])
        return loop.results

    if o.w.format.scale is None:
        return chain(0, depth, totals)
    size = o.w.format.group
    with for_(0, ceil_div(depth, size), carry=totals) as group:
        first = group.index * size
        parts = chain(first, lesser(first + size, depth), [o.out.zeros() for _ in range(rows)])
        scales = o.panel.load(o.tile.scales, group.index)
        pairs = zip(parts, group.carry, strict=True)
        group.next([[fma(s, p, t) for s, p, t in zip(scales, part, total, strict=True)] for part, total in pairs])
    return group.results


def _initialise(o: _Operands, first_row: Val, last_row: Val, first_panel: Val, last_panel: Val) -> None:
    """Set this thread's part of y to the bias, or 0."""
    last_column = lesser(last_panel * o.panel.width, o.out.count)
    with for_(first_row, last_row) as row:

        def fill(column: Val, mask: Val | None) -> None:
            zero = const(0.0, "f32", lanes=LANES)
            value = zero if o.out.bias is None else o.out.bias.load(column, lanes=LANES, mask=mask)
            o.out.y.store(value, row.index, column, mask=mask)

        each_vector(first_panel * o.panel.width, last_column, fill)


def _copy_block(x: Ref, block: Ref, row: Val, rows: Val, column: Val, columns: Val) -> None:
    with for_(0, rows) as line:

        def move(place: Val, mask: Val | None) -> None:
            block.store(x.load(row + line.index, column + place, lanes=LANES, mask=mask), line.index, place, mask=mask)

        each_vector(0, columns, move)
