"""Tiny kernels for the tests of code generation and executors."""

from __future__ import annotations

from anvil.kernels.base import Kernel, Param

_VECTOR = "memref<?xf32, strided<[1], offset: ?>>"

#: y[i] = fma(x[i], a, b) over N elements, in blocks of 16 dealt to the threads in turn.
FMA = Kernel(
    name="fma_f32",
    params=(
        Param("x", "in", "f32", 1),
        Param("y", "out", "f32", 1),
        Param("a", "scalar", "f32", -1),
        Param("b", "scalar", "f32", -1),
    ),
    mlir=f"""
func.func @fma_f32(%x: {_VECTOR}, %y: {_VECTOR}, %a: f32, %b: f32, %tid: index, %nthreads: index) {{
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %n = memref.dim %x, %c0 : {_VECTOR}
  %blocks = arith.ceildivui %n, %c16 : index
  %av = vector.broadcast %a : f32 to vector<16xf32>
  %bv = vector.broadcast %b : f32 to vector<16xf32>
  %zero = arith.constant dense<0.0> : vector<16xf32>
  scf.for %block = %tid to %blocks step %nthreads {{
    %i = arith.muli %block, %c16 : index
    %left = arith.subi %n, %i : index
    %mask = vector.create_mask %left : vector<16xi1>
    %xv = vector.maskedload %x[%i], %mask, %zero
      : {_VECTOR}, vector<16xi1>, vector<16xf32> into vector<16xf32>
    %yv = math.fma %xv, %av, %bv : vector<16xf32>
    vector.maskedstore %y[%i], %mask, %yv : {_VECTOR}, vector<16xi1>, vector<16xf32>
  }}
  return
}}""",
    edges=(("N", 16),),
)
