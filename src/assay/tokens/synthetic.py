"""Seeded synthetic weights in any geometry, as a Hugging Face folder; the same bits on every machine.

A weight is an integer drawn from a counter-based generator, times one float32 factor: no library function whose
rounding could differ between machines takes part. The spread is chosen so that activations and logits have the size
of a trained model's, and the top-2 margins of greedy decoding are worth certifying.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from assay.cache import cached

RECIPE = 1  # raise when the weights of a seed change
TOKENIZER = 2  # raise when the tokenizer beside them changes
LOGIT_SPREAD = 4.0  # standard deviation of the logits: a trained model's is 2 to 5
ON_DEMAND = "synthetic.json"
SPECIAL = ("<|bos|>", "<|eos|>", "<|pad|>")
_BLOCK = 4  # words that the generator makes at a time
_CHUNK = 1 << 16  # numbers made at a time, whose words stay in a core's cache; a multiple of the block
_HALVES = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0xFFFFFFFF)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|bos|>' + message['role'] + '\n' + message['content'] + '<|eos|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|bos|>assistant\n' }}{% endif %}"
)


def synthetic_folder(name: str, config: Mapping[str, Any], seed: int, *, on_demand: bool = False) -> Path:
    """The Hugging Face folder of ``config`` with weights of ``seed``, made in the cache when it is not there.

    With ``on_demand``, for a model that is too large to be stored, it holds ``synthetic.json`` instead of weights:
    what to draw each tensor from, ``{"recipe", "seed", "tensors": {name: {"shape", "spread", "centre"}}}``. Tensor
    ``name`` is ``draw(f"{seed}/{name}", ...)``, made when it is read.
    """
    identity = json.dumps([RECIPE, TOKENIZER, seed, dict(config), *["on demand"] * on_demand], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cached(f"models/{name}-{digest}", lambda folder: _write_folder(folder, config, seed, on_demand))


def draw(stream: str, count: int, spread: float, centre: float = 0.0) -> np.ndarray:
    """float32 [count]: about normal with deviation ``spread`` around ``centre``, a function of its arguments alone.

    Each element is the centred sum of the four 16-bit parts of a word (deviation 2^16/√3), which is exact, times a
    float32. Words come from Philox4x64-10, keyed by the first 16 bytes of SHA-256 of ``stream``.
    """
    key = np.frombuffer(hashlib.sha256(stream.encode()).digest()[:16], dtype="<u8")
    factor = np.float32(spread * 3**0.5 / 65536)
    out = np.empty(count, np.float32)

    def fill(start: int) -> None:
        part = out[start : start + _CHUNK]
        words = np.random.Philox(key=key, counter=start // _BLOCK).random_raw(len(part))
        pairs = (words & _HALVES) + ((words >> np.uint64(16)) & _HALVES)
        sums = ((pairs & _LOW) + (pairs >> np.uint64(32))).view(np.int64) - 2 * 65535
        np.multiply(sums.astype(np.float32), factor, out=part)
        if centre:
            part += np.float32(centre)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, range(0, count, _CHUNK)))
    return out


def drawn(folder: Path) -> Callable[[str], np.ndarray] | None:
    """The tensors of a folder with ``synthetic.json``, by name; None for a folder that holds weights."""
    if not (folder / ON_DEMAND).is_file():
        return None
    facts = json.loads((folder / ON_DEMAND).read_text())
    return lambda name: _tensor(facts["seed"], name, **facts["tensors"][name])


def _tensor(seed: int, name: str, shape: Sequence[int], spread: float, centre: float) -> np.ndarray:
    return draw(f"{seed}/{name}", math.prod(shape), spread, centre).reshape(shape)


def _write_folder(folder: Path, config: Mapping[str, Any], seed: int, on_demand: bool) -> None:
    folder.mkdir()
    table = {name: _distribution(name, shape) for name, shape in _geometry(config).items()}
    if on_demand:
        (folder / ON_DEMAND).write_text(json.dumps({"recipe": RECIPE, "seed": seed, "tensors": table}))
    else:
        weights = {name: _tensor(seed, name, **entry) for name, entry in table.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1))
    byte_tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1))


def _geometry(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the stored tensors, as PyTorch's own model of this configuration has them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    stored = module.state_dict()
    tensors = [*module.named_parameters(), *((name, b) for name, b in module.named_buffers() if name in stored)]
    return {name: tuple(tensor.shape) for name, tensor in tensors}


def _distribution(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Shape, deviation and mean of one tensor."""
    if "norm" in name:
        return {"shape": shape, "spread": 0.1, "centre": 1.0}
    fan_in = shape[-1] if len(shape) > 1 else 100
    spread = 1.0 if "embed" in name else 1 / math.sqrt(fan_in)
    return {"shape": shape, "spread": spread * LOGIT_SPREAD if "lm_head" in name else spread, "centre": 0.0}


def byte_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer whose tokens are the 256 bytes, then the special tokens <|bos|>, <|eos|>, <|pad|>.

    ``vocabulary`` must be at least 259; the ids above have a text like "<300>", which is never the code of a text.
    """
    if vocabulary < 259:
        raise ValueError(
            f"byte_tokenizer: vocabulary={vocabulary}, expected at least 259 (256 bytes + 3 special tokens)"
        )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    if vocabulary > 259:  # the special tokens keep their ids only if those are theirs already
        vocab |= {text: 256 + index for index, text in enumerate(SPECIAL)}
        vocab |= {f"<{index}>": index for index in range(259, vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
