"""Kernels on the Bochs CPU: x86-64 extensions that the host lacks. A worker process (bochs_worker.py) serves the same
byte stream as the runner, so the executor is the same too."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from pathlib import Path

from anvil.codegen import tools
from anvil.runtime.channel import Channel

_WORKER = Path(__file__).with_name("bochs_worker.py")


def problem() -> str:
    """What is missing for Bochs to run on this machine; empty when nothing is."""
    if os.uname().machine != "x86_64":
        return "needs an x86-64 host for Bochs (the bochscpu-python wheel exists for no other)"
    if importlib.util.find_spec("bochscpu") is None:
        return "needs Bochs: pip install 'bochscpu-python==0.4.0'"
    return ""


def connect(model: str) -> Channel:
    """Start a worker whose CPU is the Bochs ``model`` ("sapphire_rapids", "broadwell_ult", ...)."""
    with io.FileIO(os.memfd_create("anvil-bochs-shim", 0), "wb") as shim:
        shim.write(tools.compile_c("bochs_shim.c", "x86_64", *tools.SHARED))
        descriptor = shim.fileno()
        command = [sys.executable, "-P", str(_WORKER), model, f"/proc/self/fd/{descriptor}"]
        return Channel(command, pass_fds=(descriptor,))
