"""Chooses where a target's kernels run on this machine, and says what is missing where they cannot."""

from __future__ import annotations

import functools
import io
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from anvil.codegen import cache, tools
from anvil.errors import InputError, ToolMissingError
from anvil.runtime import bochs
from anvil.runtime.channel import Channel
from anvil.runtime.executor import Executor
from anvil.runtime.native import NativeExecutor
from anvil.runtime.runner import RunnerExecutor
from anvil.targets.base import Target

Way = Literal["in-process", "runner", "qemu", "bochs"]


@dataclass(frozen=True)
class Status:
    """Whether a target runs here and how ("in-process", "runner", "qemu-riscv64 7.2.22", "bochs sapphire_rapids"),
    or what is missing."""

    runs: bool
    executor: str
    reason: str = ""


def status(target: Target, *, isolated: bool = False, force: str | None = None) -> Status:
    """How kernels of ``target`` run on this machine, or exactly what is missing."""
    try:
        return Status(True, _describe(target, _choose(target, isolated, force)))
    except ToolMissingError as error:
        return Status(False, "", str(error))


def open_executor(target: Target, *, isolated: bool = False, force: str | None = None) -> Executor:
    """An executor for kernels of ``target``.

    ``isolated`` asks for a process of its own, where a crash is an error and not the end. ``force`` names the way
    ("in-process", "runner", "qemu", "bochs"). Raises :class:`ToolMissingError` saying what to install.
    """
    way = _choose(target, isolated, force)
    description = _describe(target, way)
    if way == "in-process":
        return NativeExecutor()
    if way == "bochs":
        return RunnerExecutor(functools.partial(bochs.connect, target.bochs), description, target.machine)
    emulator = target.emulator if way == "qemu" else ()
    return RunnerExecutor(functools.partial(_start_runner, emulator, target.machine), description, target.machine)


def _choose(target: Target, isolated: bool, force: str | None) -> Way:
    if force is not None and force not in get_args(Way):
        raise InputError(f"opening an executor: force={force!r}; expected one of {', '.join(get_args(Way))}")
    if force is None and target.bochs and os.environ.get("ANVIL_FORCE_BOCHS") == "1":
        force = "bochs"
    missing = _missing_flags(target)
    if force in ("in-process", "runner") or (force is None and not missing):
        if missing:
            raise ToolMissingError(f"{target.name} does not run on this host's CPU: it lacks {', '.join(missing)}")
        return "runner" if isolated or force == "runner" else "in-process"
    if target.emulator and force != "bochs":
        _require_emulator(target)
        return "qemu"
    if target.bochs and force != "qemu":
        if problem := bochs.problem():
            raise ToolMissingError(f"{target.name} {problem}")
        return "bochs"
    wanted = f"by {force!r} " if force else ""
    lacks = f"; this host's CPU lacks {', '.join(missing)}" if missing else ""
    raise ToolMissingError(f"{target.name} cannot be run {wanted}on this machine: its Target names no emulator{lacks}")


def _missing_flags(target: Target) -> list[str]:
    """What this host lacks to run ``target`` itself: its machine type, or CPU flags."""
    if platform.machine() != target.machine:
        return [f"machine type {target.machine}"]
    return [flag for flag in target.host_flags if flag not in _host_flags()]


@functools.cache
def _host_flags() -> frozenset[str]:
    """CPU flags of this host as /proc/cpuinfo spells them ("flags" on x86, "Features" on Arm)."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _require_emulator(target: Target) -> None:
    reason = _emulator_problem(target.emulator, target.machine)
    if reason:
        raise ToolMissingError(f"{target.name} {reason}")


@functools.cache
def _emulator_problem(emulator: tuple[str, ...], machine: str) -> str:
    """Why ``emulator`` cannot run the runner; empty when it can (the runner is started once to see).

    That it can is remembered for this very emulator: every command asks, for every target.
    """
    place = shutil.which(emulator[0])
    if place is None:
        return f"needs {emulator[0]}: apt-get install qemu-user"
    found = os.stat(place)
    proof = cache.key(
        "emulator runs", place, f"{found.st_size} {found.st_mtime_ns}", machine, *emulator, tools.version()
    )
    if cache.look_up(proof) is not None:
        return ""
    with _runner_file(machine) as runner:
        command = [*emulator, _path_of(runner.fileno())]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, pass_fds=(runner.fileno(),), check=False
        )
    if done.returncode != 0:
        return f"needs a newer emulator: {' '.join(emulator)} fails here with: {done.stderr.strip()}"
    cache.get_or_make(proof, lambda: b"runs")
    return ""


def _describe(target: Target, way: Way) -> str:
    if way == "bochs":
        return f"bochs {target.bochs}"
    return f"{target.emulator[0]} {_version(target.emulator[0])}" if way == "qemu" else way


@functools.cache
def _version(emulator: str) -> str:
    """ "7.2.22" out of "qemu-aarch64 version 7.2.22 (Debian ...)"."""
    text = subprocess.run([emulator, "--version"], capture_output=True, text=True, check=False).stdout
    words = text.split()
    return words[2] if len(words) > 2 else "of unknown version"


def _start_runner(emulator: tuple[str, ...], machine: str) -> Channel:
    with _runner_file(machine) as runner:
        return Channel([*emulator, _path_of(runner.fileno())], pass_fds=(runner.fileno(),))


def _runner_file(machine: str) -> io.FileIO:
    """The runner program as an open file in memory: nothing is left on disk, and no mount option can forbid it."""
    file = io.FileIO(os.memfd_create("anvil-runner", 0), "wb")
    file.write(tools.compile_c("runner.c", machine, *tools.STATIC))
    return file


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
