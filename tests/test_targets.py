"""The target registry: one file per ISA, found without being listed anywhere."""

from __future__ import annotations

import pytest

from anvil import targets
from anvil.errors import InputError


def test_every_isa_of_the_first_milestone_is_registered() -> None:
    assert {target.isa for target in targets.all_targets()} >= {
        "x86_64-avx2",
        "x86_64-avx512",
        "aarch64-neon",
        "riscv64-rvv",
    }


def test_names_are_unique() -> None:
    found = [target.name for target in targets.all_targets()]
    assert len(found) == len(set(found))


def names(pattern: str) -> list[str]:
    return [target.name for target in targets.select(pattern)]


def models(isa: str, *, quick: bool | None = None) -> list[str]:
    """CPU models of an ISA; a new one needs no change here."""
    return [t.name for t in targets.all_targets() if t.isa == isa and quick in (None, t.quick)]


def test_an_isa_name_selects_its_quick_models() -> None:
    for isa in ("riscv64-rvv", "x86_64-avx512"):
        assert names(isa) == models(isa, quick=True) and names(isa)
    assert {"riscv64-rvv-vlen128", "riscv64-rvv-vlen256"} <= set(names("riscv64-rvv"))
    assert names("x86_64-avx512") == ["x86_64-avx512"], "a target's own name stands for itself"


def test_an_isa_without_quick_models_selects_all_it_has() -> None:
    assert models("aarch64-sve", quick=True) == []
    assert names("aarch64-sve") == models("aarch64-sve")
    assert len(names("aarch64-sve")) > 1


def test_a_list_and_a_glob_select_their_union_once() -> None:
    found = names("riscv64-*-vlen?56*, riscv64-rvv-vlen256, x86_64-avx512-vnni")
    assert found == sorted(set(found))
    assert {"riscv64-rvv-vlen256", "x86_64-avx512-vnni"} < set(found)
    assert all("vlen256" in name or name == "x86_64-avx512-vnni" for name in found)


def test_the_main_targets_are_quick() -> None:
    assert {target.name for target in targets.quick_targets()} >= {
        "aarch64-neon",
        "riscv64-rvv-vlen128",
        "riscv64-rvv-vlen256",
        "x86_64-avx2",
        "x86_64-avx512",
    }


@pytest.mark.parametrize("look_up", [targets.get, targets.select])
def test_an_unknown_name_is_refused_with_the_known_ones(look_up) -> None:
    with pytest.raises(InputError, match=r"target='z80' is unknown.*aarch64-neon.*x86_64-avx2"):
        look_up("z80")


def test_the_gemm_tile_fits_the_register_file() -> None:
    for target in targets.all_targets():
        rows, vectors = target.gemm_tile
        assert rows * vectors + vectors <= target.registers, target.name
