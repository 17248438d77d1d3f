"""Faults in anvil's own kernels: one edit of the IR before code generation, and the check that must see the result.

Unlike the faults of ``faulty_compilers``, these run as machine code, on poisoned memory between guard pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
from faulty_compilers import spec
from test_assay_faults import bound, integers, relation

from anvil import codegen
from anvil.kernels.base import Kernel
from assay import backends
from assay.backends.protocol import Finding
from assay.bench import Bench
from assay.case import Case
from assay.compare import Mismatch
from assay.explore import PROFILES
from assay.formats import F32
from assay.judge import Judge

VALUE = r"%[\w#]+"
TARGET = "x86_64-avx2"
Replacement = str | Callable[[re.Match[str]], str]


@dataclass(frozen=True)
class Edit:
    """A fault as an edit of one kernel's IR: every match of ``pattern`` is replaced."""

    kernel: str
    pattern: str
    replacement: Replacement

    def __call__(self, kernel: Kernel) -> Kernel:
        """The kernel with the fault, if it is the one this edit is for."""
        if kernel.name != self.kernel:
            return kernel
        text, count = re.subn(self.pattern, self.replacement, kernel.mlir)
        assert count, f"the fault's pattern is not in the IR of {kernel.name}: {self.pattern}"
        return replace(kernel, mlir=text)


def cut_to_bfloat16(match: re.Match[str]) -> str:
    """The fused multiply-add's result, its low 16 bits cleared, under the old name."""
    name, kind = match["name"], match["kind"]
    integer = kind.replace("f32", "i32")
    return (
        f"%a{name} = {match['call']} : {kind}\n%b{name} = arith.bitcast %a{name} : {kind} to {integer}\n"
        f"%c{name} = arith.constant dense<-65536> : {integer}\n%d{name} = arith.andi %b{name}, %c{name} : {integer}\n"
        f"%{name} = arith.bitcast %d{name} : {integer} to {kind}"
    )


WITHOUT_EPS = Edit("rms_norm", rf"arith.addf ({VALUE}), %arg3 :", r"arith.maximumf \1, \1 :")
NO_OUTPUT_TAIL = Edit("rms_norm", rf"slt, ({VALUE}, %dim : index\n\s+scf.if)", r"sgt, \1")
NO_REDUCTION_TAIL = Edit(
    "rms_norm",
    rf"math.fma ({VALUE}), \1, (%\d+) : vector<16xf32>\n(.*shuffle)",
    r"arith.maximumf \2, \2 : vector<16xf32>\n\3",
)
FRONTIER = (
    rf"(index_cast .* : i64 to index\n\s+{VALUE} = arith.addi [^\n]*\n(?:[^\n]*\n){{0,6}}?\s+%c1\w* = arith.constant )1"
)
TOO_FAR = Edit("attention_naive_causal", FRONTIER, r"\g<1>2")
TOO_SHORT = Edit("attention_naive_causal", FRONTIER, r"\g<1>0")
TILED = Edit(
    "attention_naive",
    rf"(?P<group>{VALUE}) = arith.divui {VALUE}, (?P<keys>{VALUE}) : index\n"
    rf"\s+(?P<head>{VALUE}) = arith.divui (?P<row>{VALUE}), (?P=group) : index",
    r"\g<head> = arith.remui \g<row>, \g<keys> : index",
)
SLOT_LATE = Edit(
    "kv_append",
    rf"({VALUE}) = arith.addi ({VALUE}), %arg6 : index\n\s+(%c2_\d+) =",
    r"%one = arith.constant 1 : index\n%late = arith.addi \2, %one : index\n"
    r"\1 = arith.addi %late, %arg6 : index\n\3 =",
)
FROM_ONE = Edit("linear", r"dense<0\.0+e\+00> : (vector<8xf32>)", r"dense<1.0> : \1")
BFLOAT16 = Edit("linear", r"%(?P<name>\d+) = (?P<call>math\.fma [^:]*) : (?P<kind>vector<\d+xf32>)", cut_to_bfloat16)
STORE_PAST = Edit(
    "rms_norm",
    rf"vector\.maskedstore ({VALUE}\[[^\]]*\]), {VALUE}, ({VALUE}) : (memref<[^>]*>>), [^,]*, ",
    r"vector.store \2, \1 : \3, ",
)
LOAD_PAST = Edit(
    "rms_norm",
    rf"vector\.maskedload ({VALUE}\[[^\]]*\]), {VALUE}, {VALUE} : (memref<[^>]*>>), [^,]*, (\S*) into \S*",
    r"vector.load \1 : \2, \3",
)

EVERY_OTHER = f"""%one = arith.constant 1 : index
%two = arith.constant 2 : index
%every = arith.constant dense<{list(range(0, 32, 2))}> : vector<16xi32>
%even = arith.muli FIRST, %two : index
%odd = arith.addi %even, %one : index
"""
MASKED = rf"\[(.*), ({VALUE})\], ({VALUE}, {VALUE}) : (memref<.*>>), vector<16xi1>, .*"


class Interleaved:
    """Rotary pairs of neighbours, features 2i and 2i + 1, in the last, masked step of the rope kernel."""

    kernel = "rope"

    def __call__(self, kernel: Kernel) -> Kernel:
        """The kernel with the fault, if it is this one."""
        if kernel.name != self.kernel:
            return kernel
        before, last = kernel.mlir.split("scf.if", 1)
        second, first = re.search(rf"({VALUE}) = arith.addi ({VALUE}), %0 : index", last).groups()  # type: ignore[union-attr]
        start = {first: "%even", second: "%odd"}
        kinds = "vector<16xi32>, vector<16xi1>, vector<16xf32>"

        def load(m: re.Match[str]) -> str:
            place = f"%arg0[{m[2]}, {start[m[3]]}] [%every], {m[4]}"
            return f"{m[1]} = vector.gather {place} : {m[5]}, {kinds} into vector<16xf32>"

        def store(m: re.Match[str]) -> str:
            return f"vector.scatter %arg3[{m[1]}, {start[m[2]]}] [%every], {m[3]} : {m[4]}, {kinds}"

        last = re.sub(rf"({VALUE}) = vector\.maskedload %arg0{MASKED}", load, last)
        last = re.sub(rf"vector\.maskedstore %arg3{MASKED}", store, last)
        last = last.replace("{\n", "{\n" + EVERY_OTHER.replace("FIRST", first), 1)
        return replace(kernel, mlir=f"{before}scf.if{last}")


INTERLEAVED = Interleaved()

#: (fault, edit, op, check that catches it, what its report must say)
FAULTS = [
    ("eps left out", WITHOUT_EPS, "rms_norm", bound, "outside its bound"),
    ("a dropped output tail", NO_OUTPUT_TAIL, "rms_norm", bound, "(the tail)"),
    ("a dropped reduction tail", NO_REDUCTION_TAIL, "rms_norm", bound, "outside its bound"),
    ("a causal frontier one too far", TOO_FAR, "attention_causal", integers, "all in S="),
    ("a causal frontier one too far", TOO_FAR, "attention_causal", relation("causality"), "later change a result"),
    ("a KV cache read one short", TOO_SHORT, "attention_cached", integers, "outside its bound"),
    ("tile instead of repeat", TILED, "attention_full", integers, "outside its bound"),
    ("tile instead of repeat", TILED, "attention_full", relation("repeated heads"), "repeated heads differ"),
    ("a KV slot written one late", SLOT_LATE, "kv_append", bound, "outside its bound"),
    ("an accumulator that does not start at zero", FROM_ONE, "linear", integers, "outside its bound"),
    ("a bf16 accumulator", BFLOAT16, "linear", bound, "outside its bound"),
    ("a bf16 accumulator", BFLOAT16, "linear", integers, "outside its bound"),
    ("interleaved rotary pairs", INTERLEAVED, "rope", bound, "outside its bound"),
    ("interleaved rotary pairs", INTERLEAVED, "rope", integers, "outside its bound"),
    ("a store past the row", STORE_PAST, "rms_norm", bound, "SIGSEGV"),
    ("a load past the row", LOAD_PAST, "rms_norm", bound, "SIGSEGV"),
]


def judge_of(op: str, variant: str = "naive", examples: int = 60) -> Judge:
    case = Case(spec(op), F32, TARGET, variant=variant if spec(op).modes else "")
    return Judge(Bench.of(backends.load("anvil")), case, PROFILES["ci"], f"ops/test_ops.py::{op}", examples=examples)


@pytest.mark.parametrize(
    ("fault", "edit", "op", "check", "words"),
    FAULTS,
    ids=[f"{fault}-{op}-{check.__name__}" for fault, _, op, check, _ in FAULTS],
)
def test_fault_in_a_kernel_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    edit: Edit | Interleaved,
    op: str,
    check: Callable[[Judge], None],
    words: str,
) -> None:
    compile_library, seen = codegen.compile_library, set()

    def faulty(kernels: Iterable[Kernel], *arguments, **options):
        kernels = list(kernels)
        seen.update(kernel.name for kernel in kernels)
        return compile_library([edit(kernel) for kernel in kernels], *arguments, **options)

    monkeypatch.setattr(codegen, "compile_library", faulty)
    with pytest.raises((Mismatch, Finding)) as caught:
        check(judge_of(op))
    assert edit.kernel in seen, fault
    text = str(caught.value)
    assert words in text, fault
    assert ("lowering, a kernel or code generation" in text) == ("\n  eager " in text), text


@pytest.mark.parametrize(
    ("op", "check"), [("rms_norm", bound), ("linear", integers), ("attention_causal", integers), ("rope", bound)]
)
def test_same_check_passes_on_the_kernel_as_it_is(op: str, check: Callable[[Judge], None]) -> None:
    check(judge_of(op, examples=20))
