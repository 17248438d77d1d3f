"""What can go wrong around a check, and the process exit code each kind maps to.

0 all is well, 1 a check failed, 2 what the user gave cannot be used, 3 bad weights, 4 unsupported, 5 a tool is
missing, 6 compiled code crashed or hung, 7 the record could not be written.
"""


class AssayError(Exception):
    """Base of assay's own errors. ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UsageError(AssayError):
    """What the user gave cannot be used: an unknown model, target or mode, too long a prompt."""

    exit_code = 2


class WeightsError(AssayError):
    """A model's weights, tokenizer or golden is missing, cut short, or of another model."""

    exit_code = 3
