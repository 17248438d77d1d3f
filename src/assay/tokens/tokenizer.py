"""Text to token ids and back, for a GGUF file or a Hugging Face folder.

Built on the ``tokenizers`` library alone, so that generating text needs no framework. The rule by which a GGUF file's
text is cut before the byte-pair merges is only named in the file (``tokenizer.ggml.pre``); ``PRE_TOKENIZERS`` holds
the rules behind the names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream

from assay.cache import cached
from assay.errors import WeightsError
from assay.tokens.source import gguf_reader, weights_hash

CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type

PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


@dataclass(frozen=True)
class Tokenizer:
    """Encodes, decodes and applies the chat template. ``stop`` are the ids that end an answer."""

    backend: tokenizers.Tokenizer
    template: str
    bos: int | None
    stop: frozenset[int]
    bos_text: str = ""
    eos_text: str = ""

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text`` as it stands; special tokens written in it become their ids."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``ids``; with ``special`` the special tokens are written out."""
        return self.backend.decode(list(ids), skip_special_tokens=not special)

    def stream(self) -> Callable[[int], str]:
        """A function from the next id to the text that is now certain: a character is never cut in two."""
        state = DecodeStream(skip_special_tokens=True)
        return lambda token: state.step(self.backend, token) or ""

    def chat(self, text: str, system: str = "") -> str:
        """The prompt that asks a chat model ``text``. Raises :class:`WeightsError` when it has no chat template."""
        if not self.template:
            raise WeightsError("wrapping a chat prompt: this tokenizer has no chat template; give a raw prompt instead")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": text})
        return (
            _environment()
            .from_string(self.template)
            .render(messages=messages, add_generation_prompt=True, bos_token=self.bos_text, eos_token=self.eos_text)
        )


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file or a Hugging Face folder. Raises :class:`WeightsError` when it has none."""
    if path.is_dir():
        return _from_folder(path)
    facts_file = cached(f"tokenizers/{weights_hash(path)[:32]}", lambda folder: _unpack_gguf(path, folder))
    return _from_folder(facts_file)


def _from_folder(folder: Path) -> Tokenizer:
    if not (folder / "tokenizer.json").is_file():
        raise WeightsError(f"opening tokenizer of {folder}: no tokenizer.json; expected it beside the weights")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")
    template = config.get("chat_template") or ""
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()
    bos_text, eos_text = _text_of(config.get("bos_token")), _text_of(config.get("eos_token"))
    _check_belongs(backend, _read_json(folder / "config.json"), folder)
    listed = generation.get("eos_token_id", [])
    stop: set[int | None] = {listed} if isinstance(listed, int) else set(listed)
    stop.add(backend.token_to_id(eos_text) if eos_text else None)
    return Tokenizer(
        backend=backend,
        template=template,
        bos=backend.token_to_id(bos_text) if bos_text else None,
        stop=frozenset(id_ for id_ in stop if id_ is not None),
        bos_text=bos_text,
        eos_text=eos_text,
    )


def _check_belongs(backend: tokenizers.Tokenizer, config: Mapping[str, Any], folder: Path) -> None:
    """Raise :class:`WeightsError` where a model's configuration speaks of other tokens than the tokenizer has."""
    words = config.get("vocab_size")
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if words is not None and largest >= words:
        raise WeightsError(
            f"opening tokenizer of {folder}: it has id={largest}, and config.json says vocab_size={words}; it is the "
            "tokenizer of another model"
        )
    special = {id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special}
    for name in ("bos_token_id", "eos_token_id"):
        value = config.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        wrong = [id_ for id_ in ids if id_ not in special]
        if wrong and words is not None:
            raise WeightsError(
                f"opening tokenizer of {folder}: config.json says {name}={wrong[0]}, which is no special token of it; "
                "it is the tokenizer of another model"
            )


def _unpack_gguf(path: Path, folder: Path) -> None:
    """Write the tokenizer of a GGUF file in the form of a Hugging Face folder."""
    fields = gguf_reader(path).fields

    def read(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    kind, pre = read("tokenizer.ggml.model"), read("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise WeightsError(
            f"building the tokenizer of {path}: model={kind!r} pre={pre!r}; "
            f"known: model='gpt2' with pre in {', '.join(sorted(PRE_TOKENIZERS))} (assay/tokens/tokenizer.py)"
        )
    tokens: list[str] = read("tokenizer.ggml.tokens")
    types: list[int] = read("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in read("tokenizer.ggml.merges")]
    backend = tokenizers.Tokenizer(models.BPE(vocab={text: id_ for id_, text in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    for text, type_ in zip(tokens, types, strict=True):
        if type_ in (CONTROL, USER_DEFINED):
            backend.add_special_tokens([AddedToken(text, special=type_ == CONTROL, normalized=False)])

    def text_of(key: str) -> str:
        id_ = read(key)
        return "" if id_ is None else tokens[id_]

    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": text_of("tokenizer.ggml.bos_token_id"),
        "eos_token": text_of("tokenizer.ggml.eos_token_id"),
        "chat_template": read("tokenizer.chat_template", ""),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _read_json(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text()) if file.is_file() else {}


def _text_of(token: str | dict[str, Any] | None) -> str:
    return token["content"] if isinstance(token, dict) else token or ""


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def raise_exception(message: str) -> None:
        raise WeightsError(f"the chat template refuses this conversation: {message}")

    environment.globals["raise_exception"] = raise_exception
    return environment
