"""Seeded synthetic weights in any geometry, as a Hugging Face folder; the same bits on every machine.

A weight is an integer drawn from a counter-based generator, times one float32 factor: no library function whose
rounding could differ between machines takes part. The spread is chosen so that activations and logits have the size
of a trained model's, and the top-2 margins of greedy decoding are worth certifying.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from assay.cache import cached

RECIPE = 1  # raise when the weights of a seed change
LOGIT_SPREAD = 4.0  # standard deviation of the logits: a trained model's is 2 to 5
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|bos|>' + message['role'] + '\n' + message['content'] + '<|eos|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|bos|>assistant\n' }}{% endif %}"
)


def synthetic_folder(name: str, config: Mapping[str, Any], seed: int) -> Path:
    """The Hugging Face folder of ``config`` with weights of ``seed``, made in the cache when it is not there."""
    identity = json.dumps([RECIPE, seed, dict(config)], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cached(f"models/{name}-{digest}", lambda folder: _write_folder(folder, config, seed))


def draw(seed: int, name: str, shape: tuple[int, ...], spread: float) -> np.ndarray:
    """float32 [shape]: about normal with standard deviation ``spread``, a function of (seed, name, shape) alone.

    Each element is the centred sum of four 16-bit integers (deviation 2^16/√3), which is exact, times a float32.
    """
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16]
    generator = np.random.Philox(key=np.frombuffer(key, dtype="<u8"))
    count = int(np.prod(shape))
    words = generator.random_raw(count).astype("<u8", copy=False)
    sums = words.view("<u2").reshape(count, 4).astype(np.int32).sum(axis=1) - 2 * 65535
    return (sums.astype(np.float32) * np.float32(spread * 3**0.5 / 65536)).reshape(shape)


def _write_folder(folder: Path, config: Mapping[str, Any], seed: int) -> None:
    folder.mkdir()
    weights = {name: _weight(seed, name, shape) for name, shape in _geometry(config).items()}
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


def _weight(seed: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if "norm" in name:
        return np.float32(1) + draw(seed, name, shape, 0.1)
    if "embed" in name:
        return draw(seed, name, shape, 1.0)
    fan_in = shape[-1] if len(shape) > 1 else 1 / 0.01
    spread = fan_in**-0.5
    return draw(seed, name, shape, spread * LOGIT_SPREAD if "lm_head" in name else spread)


def byte_tokenizer(vocabulary: int) -> Tokenizer:
    """A tokenizer whose tokens are the 256 bytes, then the special tokens <|bos|>, <|eos|>, <|pad|>.

    ``vocabulary`` must be at least 259; ids above stay unused.
    """
    if vocabulary < 259:
        raise ValueError(
            f"byte_tokenizer: vocabulary={vocabulary}, expected at least 259 (256 bytes + 3 special tokens)"
        )
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|bos|>", "<|eos|>", "<|pad|>")])
    return tokenizer
