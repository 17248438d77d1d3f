"""Every error a user of anvil can meet, with the process exit code it maps to."""


class AnvilError(Exception):
    """Base of all anvil errors. ``exit_code`` is what a command line should end with."""

    exit_code = 1


class InputError(AnvilError):
    """What the user gave cannot be used: unknown target or mode, wrong dtype, too long a prompt."""

    exit_code = 2


class IndexRangeError(InputError, IndexError):
    """An index tensor points outside what it indexes, or an id outside the vocabulary."""


class SizeError(InputError, IndexError, RuntimeError):
    """An op has no result for these sizes, as the largest of no elements. PyTorch raises one or the other."""


class DivisionByZeroError(InputError, ZeroDivisionError, RuntimeError):
    """An integer is divided by zero. PyTorch raises ``RuntimeError`` with the other's name."""


class ValueRangeError(InputError, ValueError, RuntimeError):
    """Values that an op is not defined for. PyTorch raises one or the other."""


class WeightsError(InputError):
    """A weights file is missing, truncated, or does not fit the model's configuration."""

    exit_code = 3


class UnsupportedError(AnvilError):
    """The compiler has no lowering for what the program asks."""

    exit_code = 4


class RefusedError(UnsupportedError, IndexError, RuntimeError):
    """PyTorch itself refuses a call when it works out the shape of the result: a wrong rank, sizes that do not fit."""

    exit_code = 2


class ToolMissingError(AnvilError):
    """A linker or emulator that this target needs is not on this machine."""

    exit_code = 5


class KernelError(AnvilError):
    """A compiled kernel crashed, met an illegal instruction, or did not return in time.

    ``signal`` is the signal's name ("SIGSEGV", "SIGILL", "SIGALRM" for a hang...) and ``row`` the row of the program
    it was in; None where the machine could not tell.
    """

    exit_code = 6

    def __init__(self, message: str, *, signal: str | None = None, row: int | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        self.row = row


class EmulatorError(KernelError):
    """The emulator failed an assertion of its own, or refused an instruction that every such CPU has. That says nothing
    of the kernel: it was not run."""

    exit_code = 5
