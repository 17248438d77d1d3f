"""Matrix product of 8-bit activations and 8-bit weights: y = (codes w^T) scale_w scale_x (+ bias), sums in i32.

codes: i8 [M, B], scale: f32 [M], as :mod:`anvil.kernels.quantise_rows` makes them; w: i8 [P, bytes], the blob of a
format with the fields ``codes``, ``scale`` (f32 of an output) and ``sums`` (i32: the sum of an output's codes); bias:
f32 [N]; y: f32 [M, N].

The sum of products is an exact integer for K up to 133,143, whatever instruction makes it (:mod:`anvil.kernels.dots`).
Then f32: y = fma(sum scale_w, scale_x, bias). Three roundings: |error| <= 3u |y - b| + u |y|.

M = 1 streams ``_STREAMS`` panels at a time; M > 1 keeps a tile of sums in registers and passes a panel over all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anvil.kernels.base import Kernel
from anvil.kernels.blocks import At, BlockFormat
from anvil.kernels.define import define, memref
from anvil.kernels.dots import Dot, dot_of, rows_of, starts
from anvil.kernels.dsl import Ref, Val, cast, eq, fma, greater, index, lesser, splat
from anvil.kernels.dsl import stack as on_stack
from anvil.kernels.flow import for_, if_, if_else, in_pieces, my_range, unrolled
from anvil.kernels.linear_blocks import ask_for, blob_argument, next_panel
from anvil.kernels.panel import Panel, panel_of
from anvil.kernels.panel_output import Output
from anvil.targets.base import Target

_STREAMS = 2  # panels a matrix-vector product reads at a time
_UNROLL = 4  # steps in one turn of the loop for one row; their number is a multiple of it
Sums = list[list[Val]]  # [panel or group of rows][vector]


@dataclass(frozen=True)
class _Operands:
    codes: Ref
    scale: Ref
    blob: Ref
    out: Output
    format: BlockFormat
    dot: Dot
    target: Target

    @property
    def panel(self) -> Panel:
        return self.out.panel

    @property
    def vectors(self) -> range:
        return range(self.panel.vectors)

    @property
    def steps(self) -> Val:
        return self.codes.dim(1) // self.dot.inputs

    def head(self, name: str, panel: Val) -> list[Val]:
        """A field of the head of a panel, one vector of words after the other."""
        places = [At(self.format, self.blob, self.panel, self.target, panel, index(0), v) for v in self.vectors]
        return [at.row(name) for at in places]

    def weights(self, panel: Val, step: Val) -> list[list[Val]]:
        """Per vector of a panel, the bytes of the rows of one step. Steps lie one after the other: blocks hold nothing
        but codes."""
        width, lanes, size = self.panel.width, self.panel.lanes, self.dot.word // 8
        start = step * (width * self.dot.inputs) + self.format.head_bytes(width)
        step_of = self.blob.at(panel, start, rank=1)
        rows = range(self.dot.inputs // size)
        return [
            [step_of.load((row * width + vector * lanes) * size, lanes=lanes * size) for row in rows]
            for vector in self.vectors
        ]

    def start(self, panel: Val) -> list[Val]:
        """Sums that take back what ``offset`` adds to them."""
        return [starts(self.dot, own * -self.dot.offset) for own in self.head("sums", panel)]


def build_for(target: Target, format_: BlockFormat, has_bias: bool = False) -> Kernel:
    """The matrix product for weights of ``format_``, laid out for the target's dot."""
    panel, dot = panel_of(target), dot_of(target)
    tile_rows = dot.tile_rows(target)

    def product(codes: Ref, scale: Ref, w: Ref, bias: Ref | None, y: Ref, tid: Val, nthreads: Val) -> None:
        edge = on_stack("f32", max(tile_rows, _STREAMS), panel.width)
        operands = _Operands(codes, scale, w, Output(y, bias, panel, edge), format_, dot, target)
        with if_else(eq(codes.dim(0), 1)) as (vector, matrix):
            with vector:
                _matrix_vector(operands, tid, nthreads)
            with matrix:
                _matrix_matrix(operands, tile_rows, tid, nthreads)

    def plain(codes: Ref, scale: Ref, w: Ref, y: Ref, tid: Val, nthreads: Val) -> None:
        product(codes, scale, w, None, y, tid, nthreads)

    arguments = [
        memref("codes", "in", "i8", 2),
        memref("scale", "in", "f32", 1),
        blob_argument(format_, panel),
        *([memref("bias", "in", "f32", 1)] if has_bias else []),
        memref("y", "out", "f32", 2),
    ]
    edges = [("N", panel.width), ("N", _STREAMS * panel.width), ("M", tile_rows)]
    name = f"linear_{format_.name}" + ("_bias" if has_bias else "")
    return define(name, arguments, product if has_bias else plain, edges=edges)


def _matrix_vector(o: _Operands, tid: Val, nthreads: Val) -> None:
    def stream(start: Val, count: int) -> None:
        panels = [start + offset for offset in range(count)]
        ahead = [next_panel(panel, count, end) for panel in panels]

        def step(base: Val, offset: int, sums: Sums) -> Sums:
            for panel in ahead:
                ask_for(o.blob, panel, base + offset, o.panel.width * o.dot.inputs)
            x = _spread(o, [index(0)] * o.dot.rows, base + offset)
            return [
                [o.dot.add(own, weights, x) for own, weights in zip(mine, o.weights(panel, base + offset), strict=True)]
                for panel, mine in zip(panels, sums, strict=True)
            ]

        sums = unrolled(o.steps, _UNROLL, [o.start(panel) for panel in panels], step)
        for panel, mine in zip(panels, sums, strict=True):
            _store(o, [mine], index(0), 1, panel)

    first, end = my_range(o.blob.dim(0), tid, nthreads)
    in_pieces(first, end, _STREAMS, stream)


def _matrix_matrix(o: _Operands, tile_rows: int, tid: Val, nthreads: Val) -> None:
    panels = o.blob.dim(0)
    across = lesser(nthreads, greater(panels, index(1)))
    down = nthreads // across
    with if_(tid < across * down):
        first_row, last_row = my_range(o.codes.dim(0), tid // across, down)
        with for_(*my_range(panels, tid % across, across)) as panel:

            def tile(start: Val, rows: int, panel: Val = panel.index) -> None:
                groups = -(-rows // o.dot.rows)
                places = [start + min(row, rows - 1) for row in range(groups * o.dot.rows)]

                with for_(0, o.steps, carry=[o.start(panel)] * groups) as loop:
                    weights = o.weights(panel, loop.index)
                    sums = []
                    for group, mine in enumerate(loop.carry):
                        own = places[group * o.dot.rows : (group + 1) * o.dot.rows]
                        x = _spread(o, own, loop.index)
                        sums.append([o.dot.add(one, w, x) for one, w in zip(mine, weights, strict=True)])
                    loop.next(sums)
                _store(o, loop.results, start, rows, panel)

            in_pieces(first_row, last_row, tile_rows, tile)


def _spread(o: _Operands, rows: list[Val], step: Val) -> Val | Sequence[Val]:
    """The codes of some rows of x for one step, as the dot wants them."""
    codes = [o.codes.load(row, step * o.dot.inputs, lanes=o.dot.inputs) for row in rows]
    return o.dot.spread(codes, o.panel.lanes)


def _store(o: _Operands, sums: Sums, first_row: Val, count: int, panel: Val) -> None:
    """Scale the sums of ``count`` rows and write them to y."""
    scales = [words.bits("f32") for words in o.head("scale", panel)]
    split = [[rows_of(o.dot, own) for own in group] for group in sums]  # [group][vector][row]
    biases = o.out.start(panel)
    rows = []
    for number in range(count):
        group, within = divmod(number, o.dot.rows)
        mine = splat(o.scale.load(first_row + number), o.panel.lanes)
        scaled = [cast(own[within], "f32") * scale for own, scale in zip(split[group], scales, strict=True)]
        rows.append([fma(value, mine, bias) for value, bias in zip(scaled, biases, strict=True)])
    o.out.store(rows, first_row, panel)
