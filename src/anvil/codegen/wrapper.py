"""The packed entry of a kernel: unpacks a flat array of 64-bit words into the arguments of the lowered function."""

from __future__ import annotations

from anvil.kernels.base import Kernel, Param
from anvil.targets.base import Target

_FLOATS = {"f32": ("i32", "float"), "f64": ("i64", "double"), "f16": ("i16", "half"), "bf16": ("i16", "bfloat")}


def symbol(kernel_name: str) -> str:
    """The exported name of a kernel's packed entry."""
    return f"{kernel_name}__packed"


def packed_wrapper(kernel: Kernel, target: Target) -> str:
    """LLVM IR of ``void @<name>__packed(ptr words, i64 tid, i64 nthreads)``, to be appended to the kernel's module."""
    body: list[str] = []
    arguments: list[str] = []
    word = 0
    for param in kernel.params:
        for kind in _word_types(param):
            body += _load(word, kind)
            arguments.append(f"{kind} %a{word}")
            word += 1
    attributes = " ".join(f'"{key}"="{value}"' for key, value in target.attributes)
    if times := target.scalable_times:
        attributes += f" vscale_range({times},{times})"
    call = ", ".join([*arguments, "i64 %tid", "i64 %nthreads"])
    return "\n".join(
        [
            f"define void @{symbol(kernel.name)}(ptr %words, i64 %tid, i64 %nthreads) {attributes} {{",
            *body,
            f"  call void @{kernel.name}({call})",
            "  ret void",
            "}",
        ]
    )


def _word_types(param: Param) -> list[str]:
    """LLVM types of the words a parameter takes, as the lowered function receives them."""
    if param.rank >= 0:
        return ["ptr", "ptr"] + ["i64"] * (1 + 2 * param.rank)
    if param.dtype in _FLOATS:
        return [_FLOATS[param.dtype][1]]
    return ["i64" if param.dtype == "index" else param.dtype]


def _load(word: int, kind: str) -> list[str]:
    lines = [f"  %p{word} = getelementptr i64, ptr %words, i64 {word}"]
    if kind in ("ptr", "i64"):
        return [*lines, f"  %a{word} = load {kind}, ptr %p{word}, align 8"]
    bits = next((integer for integer, floating in _FLOATS.values() if floating == kind), kind)
    lines.append(f"  %w{word} = load i64, ptr %p{word}, align 8")
    if bits == "i64":
        return [*lines, f"  %a{word} = bitcast i64 %w{word} to {kind}"]
    if bits == kind:
        return [*lines, f"  %a{word} = trunc i64 %w{word} to {kind}"]
    return [*lines, f"  %t{word} = trunc i64 %w{word} to {bits}", f"  %a{word} = bitcast {bits} %t{word} to {kind}"]
