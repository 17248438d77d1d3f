"""Turn weights and a configuration into a transformers module, offline and quietly.

transformers takes seconds to import, so it is imported when a model is loaded and not before.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from anvil.errors import WeightsError


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """The transformers package without network, progress bars and advice; restores its settings afterwards."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the GGUF reader draws its own progress bar
            yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def causal_lm(
    folder: Path | None,
    *,
    what: str,
    gguf_file: str | None = None,
    config: Any | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
) -> torch.nn.Module:
    """A causal language model in float32, from a folder, from a GGUF file in it, or from ``config`` and ``state``.

    Raises :class:`WeightsError` when the weights cannot be read, or do not give every parameter its shape.
    """
    given: dict[str, Any] = {"gguf_file": gguf_file, "config": config, "state_dict": state}
    given = {name: value for name, value in given.items() if value is not None}
    with quiet_transformers() as transformers:
        auto = transformers.AutoModelForCausalLM
        if config is not None:
            auto = auto._model_mapping[type(config)]
        try:
            module, info = auto.from_pretrained(
                folder,
                dtype=torch.float32,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **given,
            )
        except Exception as error:  # readers raise anything from OSError to struct.error on a damaged file
            raise WeightsError(f"loading {what}: cannot be read: {_first_line(error)}") from error
    _check_complete(info, what)
    return module.eval().requires_grad_(False)


def tokenizer(folder: Path, **given: Any) -> Any | None:
    """The tokenizer that lies beside the weights, or None."""
    with quiet_transformers() as transformers:
        try:
            return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, **given)
        except (OSError, ValueError, KeyError):
            return None


def _check_complete(info: Mapping[str, Any], what: str) -> None:
    """Every parameter of the configuration found, in its shape."""
    wrong = sorted(info.get("mismatched_keys", ()))
    if wrong:
        name, got, want = wrong[0]
        raise WeightsError(
            f"loading {what}: {len(wrong)} weights do not fit the configuration; first: {name} has "
            f"shape={tuple(got)}, expected {tuple(want)}; check that the weights and config.json belong together"
        )
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise WeightsError(
            f"loading {what}: {len(missing)} weights of the configuration are missing; first: {missing[0]}; "
            "get the complete checkpoint"
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300] if text else 'no message'}"
