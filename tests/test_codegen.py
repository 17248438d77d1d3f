"""Code generation: signatures, stages, what the assembly holds, determinism."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from metal_kernels import DOT, FMA, HANG, POKE

from anvil import codegen, targets
from anvil.codegen.lowering import LoweringError
from anvil.errors import ToolMissingError
from anvil.kernels.base import Kernel, Param
from anvil.runtime.native import NativeExecutor

TARGETS = targets.quick_targets()
AVX2 = targets.get("x86_64-avx2")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_library_needs_nothing_from_outside(target: targets.Target) -> None:
    library = codegen.compile_library([FMA, POKE], target)
    assert library.symbols == {"fma_f32": "fma_f32__packed", "poke_i8": "poke_i8__packed"}
    assert library.data[:4] == b"\x7fELF"


def test_equal_kernels_make_equal_code_whatever_their_order() -> None:
    assert codegen.compile_library([FMA, POKE], AVX2) == codegen.compile_library([POKE, FMA], AVX2)


def test_the_key_of_an_object_depends_on_all_that_shapes_it() -> None:
    renamed = dataclasses.replace(FMA, mlir=FMA.mlir.replace("math.fma %xv, %av", "math.fma %av, %xv"))
    keys = [codegen.compile_kernel(kernel, target).key for kernel in (FMA, renamed) for target in TARGETS]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_fused_multiply_add_stays_fused(target: targets.Target) -> None:
    text = codegen.assembly(FMA, target)
    fused = sum(loop.count("vfmadd", "vfmacc", "fmla") for loop in codegen.inner_loops(text))
    assert fused >= 16 // max(target.lanes(), 4) // (4 if target.machine == "riscv64" else 1)
    assert "fmaf" not in text, "a call into libm"


def test_avx512_uses_its_full_width() -> None:
    assert "%zmm" in codegen.assembly(FMA, targets.get("x86_64-avx512"))
    assert "%zmm" not in codegen.assembly(FMA, AVX2)


# ---- parameters ----

SCALARS = [("f32", 2.5, np.float32), ("f64", -1e300, np.float64), ("i64", -(2**62), np.int64), ("i32", -7, np.int32)]
SCALARS += [("index", 12345678901, np.int64), ("i8", -3, np.int8), ("f16", 0.333, np.float16)]


@pytest.mark.parametrize(("dtype", "value", "kind"), SCALARS, ids=[row[0] for row in SCALARS])
def test_a_scalar_of_any_type_arrives_with_its_bits(dtype: str, value: float, kind: type) -> None:
    memory = f"memref<?x{dtype}, strided<[1], offset: ?>>"
    kernel = Kernel(
        f"store_{dtype}",
        (Param("y", "out", dtype, 1), Param("v", "scalar", dtype, -1)),
        f"""func.func @store_{dtype}(%y: {memory}, %v: {dtype}, %tid: index, %nthreads: index) {{
              %c1 = arith.constant 1 : index
              memref.store %v, %y[%c1] : {memory}
              return
            }}""",
    )
    executor = NativeExecutor()
    library = codegen.compile_library([kernel], AVX2)
    entry = executor.symbol(executor.load(library.data), library.symbols[kernel.name])
    expected = kind(value)
    address = executor.alloc(16)
    word = int.from_bytes(expected.tobytes(), "little")
    words = np.array([address, address, 0, 2, 1, word - (word >> 63 << 64)], np.int64)
    executor.run(np.array([[entry, 0]], np.int64), words)
    assert executor.read(address + expected.nbytes, expected.nbytes) == expected.tobytes()
    executor.close()


@pytest.mark.parametrize(
    ("params", "found"),
    [
        ((), r"\['memref<\?xi8, .*; its parameters promise \['index', 'index'\]"),
        ((Param("y", "out", "i8", 2), POKE.params[1]), "i8 x 2"),
        ((Param("y", "out", "f32", 1), POKE.params[1]), "f32 x 1"),
        ((POKE.params[0], Param("at", "scalar", "f32", -1)), r"\['i8 x 1', 'f32', 'index', 'index'\]"),
    ],
)
def test_parameters_that_disagree_with_the_function_are_refused(params: tuple[Param, ...], found: str) -> None:
    with pytest.raises(LoweringError, match=f"kernel 'poke_i8': @poke_i8 takes .*{found}"):
        codegen.compile_kernel(dataclasses.replace(POKE, params=params), AVX2)


def test_malformed_mlir_is_refused_with_the_place() -> None:
    with pytest.raises(LoweringError, match=r"parsing kernel 'broken': not valid MLIR:\n(?s:.*)expected"):
        codegen.compile_kernel(Kernel("broken", (), "func.func @broken("), AVX2)


def test_a_module_without_the_function_is_refused() -> None:
    with pytest.raises(LoweringError, match="kernel 'other': its module has no function @other"):
        codegen.compile_kernel(dataclasses.replace(POKE, name="other"), AVX2)


def test_an_operation_no_pass_lowers_is_refused_by_name() -> None:
    on_a_tensor = """
      %t = tensor.empty() : tensor<1xi8>
      %e = tensor.extract %t[%at] : tensor<1xi8>
      memref.store %e"""
    kernel = dataclasses.replace(POKE, mlir=POKE.mlir.replace("memref.store %one", on_a_tensor))
    with pytest.raises(LoweringError, match=r"nothing lowers .*tensor\.empty"):
        codegen.compile_kernel(kernel, AVX2)


def test_a_call_into_libm_is_refused_at_link_time() -> None:
    kernel = Kernel(
        "sine",
        (Param("y", "inout", "f32", 0),),
        """func.func @sine(%y: memref<f32, strided<[], offset: ?>>, %tid: index, %nthreads: index) {
             %v = memref.load %y[] : memref<f32, strided<[], offset: ?>>
             %s = math.sin %v : f32
             memref.store %s, %y[] : memref<f32, strided<[], offset: ?>>
             return
           }""",
    )
    with pytest.raises(RuntimeError, match=r"linking kernels: .*\n.*undefined symbol: sinf"):
        codegen.compile_library([kernel], AVX2)


# ---- stages ----

STAGES = ["source", "canonicalize", "lower-vectors", "lower-loops", "llvm-dialect", "llvm-ir", "optimised"]


def test_every_stage_has_its_name() -> None:
    assert [stage.name for stage in codegen.dump_stages(FMA, AVX2)] == STAGES


@pytest.mark.parametrize("index", range(len(STAGES)), ids=STAGES)
def test_every_stage_is_executable_and_computes_the_same_bits(index: int) -> None:
    stage = codegen.dump_stages(FMA, AVX2)[index]
    x = np.linspace(-2, 7, 37, dtype=np.float32)
    executor = NativeExecutor()
    library = stage.compile()
    entry = executor.symbol(executor.load(library.data), library.symbols["fma_f32"])
    source, target = executor.alloc(x.nbytes), executor.alloc(x.nbytes)
    executor.write(source, x.tobytes())
    one = int(np.float32(1).view(np.int32))
    words = np.array([source, source, 0, 37, 1, target, target, 0, 37, 1, one, one], np.int64)
    (answer,) = executor.run_and_read(np.array([[entry, 0]], np.int64), words, [(target, x.nbytes)])
    assert answer == (x + np.float32(1)).tobytes()
    executor.close()


# ---- assembly ----


def test_spills_in_a_loop_are_counted() -> None:
    """40 accumulators cannot live in 16 registers; 4 can."""
    many, few = (codegen.inner_loops(codegen.assembly(_accumulators(n), AVX2)) for n in (40, 4))
    assert sum(loop.spills for loop in many) > 0
    assert {loop.spills + loop.reloads for loop in few} == {0}
    assert {loop.count("vfmadd") % 4 for loop in few} == {0}  # LLVM may unroll


def _accumulators(count: int) -> Kernel:
    """y[j, :] = sum over i of x[i] * x[i + j]-like products, with ``count`` vectors carried around the loop."""
    memory, vector = "memref<?xf32, strided<[1], offset: ?>>", "vector<8xf32>"
    names = [f"%a{j}" for j in range(count)]
    types = ", ".join([vector] * count)
    body = "\n".join(f"%n{j} = math.fma %v, %{'v' if j == 0 else f'a{j - 1}'}, %a{j} : {vector}" for j in range(count))
    stores = "\n".join(
        f"%o{j} = arith.constant {8 * j} : index\nvector.store %r#{j}, %y[%o{j}] : {memory}, {vector}"
        for j in range(count)
    )
    return Kernel(
        f"accumulate_{count}",
        (Param("x", "in", "f32", 1), Param("y", "out", "f32", 1)),
        f"""func.func @accumulate_{count}(%x: {memory}, %y: {memory}, %tid: index, %nthreads: index) {{
              %c0 = arith.constant 0 : index
              %c1 = arith.constant 1 : index
              %n = memref.dim %x, %c0 : {memory}
              %z = arith.constant dense<0.0> : {vector}
              %r:{count} = scf.for %i = %c0 to %n step %c1 iter_args({", ".join(f"{name} = %z" for name in names)})
                  -> ({types}) {{
                %s = memref.load %x[%i] : {memory}
                %v = vector.broadcast %s : f32 to {vector}
                {body}
                scf.yield {", ".join(f"%n{j}" for j in range(count))} : {types}
              }}
              {stores}
              return
            }}""",
    )


def test_a_missing_toolchain_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen.tools.importlib.util, "find_spec", lambda name: None)
    codegen.tools.zig.cache_clear()
    with pytest.raises(ToolMissingError, match="'ziglang' package is not installed; run: pip install"):
        codegen.tools.zig()
    monkeypatch.undo()
    codegen.tools.zig.cache_clear()


def test_hang_and_dot_compile_for_every_target() -> None:
    """The remaining test kernels; a scalar loop and an endless one."""
    for target in TARGETS:
        assert len(codegen.compile_library([HANG, DOT], target).symbols) == 2
