"""How a target runs on this machine, and what is said when it does not."""

from __future__ import annotations

import dataclasses

import pytest

from anvil import targets
from anvil.errors import InputError, ToolMissingError
from anvil.runtime import bochs, open_executor, status
from anvil.runtime import open as opening

AARCH64, AVX512 = targets.get("aarch64-neon"), targets.get("x86_64-avx512")


def test_a_missing_emulator_is_named_with_the_package_to_install() -> None:
    absent = dataclasses.replace(AARCH64, emulator=("qemu-absent", "-cpu", "max"))
    found = status(absent, force="qemu")
    assert (found.runs, found.executor) == (False, "")
    assert found.reason == "aarch64-neon needs qemu-absent: apt-get install qemu-user"


def test_opening_without_the_emulator_raises_the_same_words() -> None:
    absent = dataclasses.replace(AARCH64, emulator=("qemu-absent", "-cpu", "max"))
    with pytest.raises(ToolMissingError, match="needs qemu-absent: apt-get install qemu-user"):
        open_executor(absent, force="qemu")


def test_an_emulator_that_does_not_know_the_cpu_is_seen_before_any_kernel_runs() -> None:
    if not status(AARCH64, force="qemu").runs:
        pytest.skip(status(AARCH64, force="qemu").reason)
    unknown = dataclasses.replace(AARCH64, emulator=("qemu-aarch64", "-cpu", "z80"))
    assert "qemu-aarch64 -cpu z80 fails here with: " in status(unknown, force="qemu").reason


def test_a_host_without_the_instructions_names_them() -> None:
    wanting = dataclasses.replace(AVX512, host_flags=("avx512_of_the_future",), bochs="")
    assert "this host's CPU lacks " in status(wanting).reason
    assert "it lacks " in status(wanting, force="in-process").reason


def test_bochs_steps_in_where_the_host_lacks_the_instructions() -> None:
    wanting = dataclasses.replace(AVX512, host_flags=("avx512_of_the_future",))
    if bochs.problem():
        pytest.skip(bochs.problem())
    assert status(wanting).executor == "bochs sapphire_rapids"


def test_bochs_can_be_forced_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    if bochs.problem():
        pytest.skip(bochs.problem())
    monkeypatch.setenv("ANVIL_FORCE_BOCHS", "1")
    assert status(AVX512).executor == "bochs sapphire_rapids"
    assert status(targets.get("x86_64-avx2")).executor != "bochs sapphire_rapids"


def test_a_host_without_bochs_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bochs.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(opening.platform, "machine", lambda: "x86_64")
    assert "bochs" in status(AVX512, force="bochs").reason.lower()
    assert not status(AVX512, force="bochs").runs


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InputError, match="force='docker'; expected one of in-process, runner, qemu, bochs"):
        open_executor(AVX512, force="docker")
