"""Every stage of a region means the same: linalg as built, and simplified, both run by upstream's plain lowering in
this process, against the scheduled kernel."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from lowered import compiled
from mlir.execution_engine import ExecutionEngine
from mlir.runtime import get_ranked_memref_descriptor, ranked_memref_to_numpy

from anvil import mlir
from anvil.lower.generic import emission, kernel
from anvil.lower.generic.linalg_builder import signature
from anvil.runtime.binding import compile_sizes, concrete

BS, S = {0: "B", 1: "S"}, {0: "S"}
PLAIN = (
    "one-shot-bufferize{bufferize-function-boundaries function-boundary-type-conversion=identity-layout-map},"
    "convert-linalg-to-loops,convert-scf-to-cf,expand-strided-metadata,lower-affine,"
    "convert-math-to-llvm,convert-math-to-libm,finalize-memref-to-llvm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-cf-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts"
)
REGIONS = {
    "elementwise": (lambda x, w: torch.maximum(x, w) * x + torch.exp(x), [BS, S]),
    "softmax": (lambda x: torch.softmax(x, -1), [BS]),
    "column mean": (lambda x: x.mean(0), [BS]),
    "normalisation": (lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1) * w, [BS, S]),
    "position of the maximum": (lambda x: x.argmax(0), [BS]),
    "mask from positions": (lambda x: x + torch.arange(x.shape[1]) * 2, [BS]),
    "matrix product": (lambda x, y: x @ y.t(), [BS, {0: "N", 1: "S"}]),
}  # no bools: upstream's plain lowering cannot store them
SIZES = {"B": 5, "S": 19, "N": 3}


@pytest.mark.parametrize("name", REGIONS)
def test_stages_agree(name, monkeypatch):
    f, dims = REGIONS[name]
    nests = []
    monkeypatch.setattr(emission, "_KERNELS", {})
    monkeypatch.setattr(emission, "generate", lambda nest, *rest: (nests.append(nest), kernel.generate(nest, *rest))[1])
    examples = [torch.ones([{"B": 2, "S": 3, "N": 4}[size] for size in d.values()]) for d in dims]
    lowered = compiled(f, *examples, dynamic=tuple(dims))
    (nest,) = nests
    inputs = [torch.randint(-3, 4, [SIZES[size] for size in d.values()]).float() for d in dims]
    scheduled = lowered(*inputs)
    given = dict(zip(lowered.program.inputs, inputs, strict=True))
    texts = dict(kernel.stages(nest, converts_f16=True))
    assert list(texts) == ["linalg", "simplified", "scheduled"]
    for stage in ("linalg", "simplified"):
        plain = run_plainly(nest, texts[stage], given).view(scheduled.numpy().dtype).reshape(scheduled.shape)
        np.testing.assert_allclose(plain, scheduled.numpy(), rtol=4e-7, atol=0, err_msg=stage)


def run_plainly(nest, text, given):
    """The one result of ``@region``, through upstream's loops and this host's libm."""
    kinds = signature(nest)
    (target,) = nest.targets
    shape = concrete(target, SIZES)[1]
    dtype = {"f32": np.float32, "i64": np.int64}[nest.steps[nest.stores[0]].dtype]
    destination, returned = np.zeros(shape, dtype), np.zeros(shape, dtype)
    sources = [read(nest.steps[step].view, given) for step in kinds.inputs]
    scalars = compile_sizes([nest.steps[step].size for step in kinds.scalars], tuple(SIZES))(*SIZES.values())
    with mlir.context(), mlir.Location.unknown():
        module = mlir.Module.parse(text)
        module.body.operations[0].attributes["llvm.emit_c_interface"] = mlir.ir.UnitAttr.get()
        mlir.run_passes(module, PLAIN)
        engine = ExecutionEngine(module)
        arrays = [returned, *sources, destination]
        pointers = [ctypes.pointer(ctypes.pointer(get_ranked_memref_descriptor(array))) for array in arrays]
        numbers = [ctypes.pointer(ctypes.c_int64(int(number))) for number in scalars]
        engine.invoke("region", *pointers, *numbers)  # the result's descriptor is written over the first one
        return ranked_memref_to_numpy(pointers[0][0]).copy()


def read(view, given):
    offset, sizes, strides = concrete(view, SIZES)
    return given[view.buffer].as_strided(sizes, strides, offset).contiguous().numpy()
