"""A byte stream to a runner process, written and read at the same time so that neither side can block the other."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import tempfile
import weakref
from collections import deque
from collections.abc import Sequence
from typing import IO

_FAULT = struct.Struct("<QQQqq")
_STATUS = struct.Struct("<Q")
_SEND_AT = 1 << 20  # bytes queued before they are sent without waiting for a request that wants an answer
_PIECES = 512  # buffers per system call, below IOV_MAX
_CHUNK = 1 << 20  # bytes per system call


class Died(Exception):
    """The process ended, or made no progress in time, without saying why itself."""


class Fault(Exception):
    """The runner's last words (``struct fault`` of native_src/runner.c)."""

    def __init__(self, kind: int, signal: int, address: int, row: int, tid: int) -> None:
        super().__init__(kind, signal, address, row, tid)
        self.kind, self.signal, self.address, self.row, self.tid = kind, signal, address, row, tid


class Channel:
    """Starts ``command`` and exchanges requests for answers with it."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process runs)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0, pass_fds=pass_fds
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        streams = (self._process.stdin, self._process.stdout, self._errors)
        self._end = weakref.finalize(self, _end, self._process, streams)  # at the interpreter's exit at the latest
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self._unsent: deque[memoryview] = deque()
        self._queued = 0

    def send(self, data: bytes | memoryview, patience: float = 60.0) -> None:
        """Queue part of a request. ``data`` is not copied: it must not change before the next :meth:`exchange`.

        Much data is sent at once; raises as :meth:`exchange` does.
        """
        if len(data) > 0:
            self._unsent.append(memoryview(data).cast("B"))
            self._queued += len(data)
        if self._queued >= _SEND_AT:
            self.exchange((), patience)

    def exchange(self, sizes: Sequence[int], patience: float) -> list[bytearray]:
        """Send all that is queued and return one answer for each of ``sizes`` (bytes of its payload).

        Raises :class:`Fault` when the runner reports one, and :class:`Died` when it ends without a word or no byte
        moves for ``patience`` seconds.
        """
        answers = [self._answer(size, patience) for size in sizes]
        while self._unsent:
            self._step(None, patience)
        self._queued = 0
        return answers

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._end()

    def _answer(self, size: int, patience: float) -> bytearray:
        status = self._receive(_STATUS.size, patience)
        if _STATUS.unpack(status) != (0,):
            raise Fault(*_FAULT.unpack(status + self._receive(_FAULT.size - _STATUS.size, patience)))
        return self._receive(size, patience)

    def _receive(self, size: int, patience: float) -> bytearray:
        buffer = bytearray(size)
        wanted = memoryview(buffer)
        while wanted:
            wanted = wanted[self._step(wanted, patience) :]
        return buffer

    def _step(self, wanted: memoryview | None, patience: float) -> int:
        """Wait until something moves and move it. Returns the number of bytes read into ``wanted``."""
        poll = select.poll()
        if self._unsent:
            poll.register(self._input, select.POLLOUT)
        if wanted is not None:
            poll.register(self._output, select.POLLIN)
        ready = dict(poll.poll(patience * 1000))
        if not ready:
            raise Died(f"no answer for {patience:g} s")
        if self._input in ready and not self._write() and wanted is None:
            self._answer(0, patience)  # the report written before the pipe broke, or Died
        if wanted is None or self._output not in ready:
            return 0
        count = os.readv(self._output, [wanted[:_CHUNK]])
        if count == 0:
            raise Died(self._last_words())
        return count

    def _write(self) -> bool:
        """Write what the pipe takes; False, and nothing left to send, when nobody reads it any more."""
        pieces: list[memoryview] = []
        room = _CHUNK
        for piece in self._unsent:
            pieces.append(piece[:room])
            room -= len(pieces[-1])
            if room == 0 or len(pieces) == _PIECES:
                break
        try:
            count = os.writev(self._input, pieces)
        except BrokenPipeError:
            self._unsent.clear()
            return False
        while count > 0:
            first = self._unsent.popleft()
            if count < len(first):
                self._unsent.appendleft(first[count:])
            count -= min(count, len(first))
        return True

    def _last_words(self) -> str:
        """How the process ended, with the end of what it wrote to its standard error."""
        code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read()[-500:].decode(errors="replace").strip()
        how = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
        return f"it ended ({how}){': ' + text if text else ''}"


def _end(process: subprocess.Popen[bytes], streams: Sequence[IO[bytes]]) -> None:
    process.kill()
    process.wait()
    for stream in streams:
        stream.close()
