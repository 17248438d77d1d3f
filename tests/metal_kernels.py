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

_BYTES = "memref<?xi8, strided<[1], offset: ?>>"

#: Writes y[at] = 1 without a look at y's size; y has one element that is always in bounds: the caller chooses `at`.
POKE = Kernel(
    name="poke_i8",
    params=(Param("y", "out", "i8", 1), Param("at", "scalar", "index", -1)),
    mlir=f"""
func.func @poke_i8(%y: {_BYTES}, %at: index, %tid: index, %nthreads: index) {{
  %one = arith.constant 1 : i8
  memref.store %one, %y[%at] : {_BYTES}
  return
}}""",
)

#: Spins until y[0] becomes zero, which nobody will make it.
HANG = Kernel(
    name="hang_i8",
    params=(Param("y", "inout", "i8", 1),),
    mlir=f"""
func.func @hang_i8(%y: {_BYTES}, %tid: index, %nthreads: index) {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0 : i8
  scf.while : () -> () {{
    %v = memref.load %y[%c0] : {_BYTES}
    %w = arith.addi %v, %v : i8
    memref.store %v, %y[%c0] : {_BYTES}
    %go = arith.cmpi ne, %v, %zero : i8
    scf.condition(%go)
  }} do {{
    scf.yield
  }}
  return
}}""",
)

#: y[0] = the dot product of four bytes each, by an instruction that only some CPUs have.
DOT = Kernel(
    name="dot_i8",
    params=(Param("x", "in", "i8", 1), Param("y", "out", "i32", 1)),
    mlir=f"""
func.func @dot_i8(%x: {_BYTES}, %y: memref<?xi32, strided<[1], offset: ?>>, %tid: index, %nthreads: index) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = memref.dim %x, %c0 : {_BYTES}
  %zero = arith.constant 0 : i32
  %sum = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %zero) -> i32 {{
    %v = memref.load %x[%i] : {_BYTES}
    %w = arith.extsi %v : i8 to i32
    %sq = arith.muli %w, %w : i32
    %next = arith.addi %acc, %sq : i32
    scf.yield %next : i32
  }}
  memref.store %sum, %y[%c0] : memref<?xi32, strided<[1], offset: ?>>
  return
}}""",
)


def memory_kernel(function: str) -> Kernel:
    """y[to : to + n] = x-like bytes by a library routine; ``function`` is memset, memcpy or memmove.

    memset fills with 7; the others copy from y[source : source + n].
    """
    call = {
        "memset": '"llvm.intr.memset"(%to, %seven, %n) <{isVolatile = false}> : (!llvm.ptr, i8, i64) -> ()',
        "memcpy": '"llvm.intr.memcpy"(%to, %from, %n) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()',
        "memmove": '"llvm.intr.memmove"(%to, %from, %n) <{isVolatile = false}> : (!llvm.ptr, !llvm.ptr, i64) -> ()',
    }[function]
    params = (Param("y", "inout", "i8", 1), *(Param(name, "scalar", "i64", -1) for name in ("to", "source", "n")))
    return Kernel(
        f"call_{function}",
        params,
        f"""func.func @call_{function}(%y: {_BYTES}, %at: i64, %source: i64, %n: i64, %tid: index, %nthreads: index) {{
              %seven = arith.constant 7 : i8
              %start = memref.extract_aligned_pointer_as_index %y : {_BYTES} -> index
              %base = arith.index_cast %start : index to i64
              %a = arith.addi %base, %at : i64
              %b = arith.addi %base, %source : i64
              %to = llvm.inttoptr %a : i64 to !llvm.ptr
              %from = llvm.inttoptr %b : i64 to !llvm.ptr
              {call}
              return
            }}""",
    )
