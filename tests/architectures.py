"""One tiny random model per architecture of ``transformers``, with the inputs it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hub
from tiny_models import randomise
from torch import nn

TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = TEXT | {"num_key_value_heads": 2}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GRANITE = {"embedding_multiplier": 2.0, "logits_scaling": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3}
OPT = {"ffn_dim": 44, "word_embed_proj_dim": 32}
VIT = {"image_size": 16, "patch_size": 4, "num_labels": 5}
WHISPER = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 44,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 64,
    "decoder_start_token_id": 1,
}


def tokens(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * batch + length)
    return torch.randint(3, TEXT["vocab_size"], (batch, length), generator=generator)


def images(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(batch))


def spectra(batch: int, length: int) -> torch.Tensor:
    """Whisper takes spectra of one length only: two frames per position."""
    return torch.randn(batch, 8, 40, generator=torch.Generator().manual_seed(batch))


@dataclass(frozen=True)
class Architecture:
    """``options`` are the constants of a call; ``longest`` sequence, None where the length is no input."""

    build: Callable[[], nn.Module]
    draw: Callable[[int, int], torch.Tensor] = tokens
    options: tuple[tuple[str, Any], ...] = (("use_cache", False),)
    result: str = "logits"
    longest: int | None = 64

    def model(self) -> nn.Module:
        return randomise(self.build())


def _causal(name: str, **changes: Any) -> Architecture:
    config, model = getattr(hub, f"{name}Config"), getattr(hub, f"{name}ForCausalLM")
    return Architecture(lambda: model(config(**changes)))


ARCHITECTURES: dict[str, Architecture] = {
    "llama": _causal("Llama", **GROUPED),
    "qwen2": _causal("Qwen2", **GROUPED),
    "qwen3": _causal("Qwen3", **GROUPED, head_dim=8),
    "mistral": _causal("Mistral", **GROUPED, sliding_window=4),
    "gemma2": _causal("Gemma2", **GROUPED, head_dim=8, sliding_window=4),
    "gemma3": Architecture(
        lambda: hub.Gemma3ForCausalLM(hub.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=4))
    ),
    "phi3": _causal("Phi3", **GROUPED, pad_token_id=0),
    "gpt_neox": _causal("GPTNeoX", **TEXT),
    "opt": _causal("OPT", **TEXT, **OPT),
    "bloom": _causal("Bloom", vocab_size=61, hidden_size=32, n_layer=2, n_head=4),
    "falcon": _causal("Falcon", vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    "olmo2": _causal("Olmo2", **GROUPED),
    "granite": _causal("Granite", **GROUPED, **GRANITE),
    "gpt2": Architecture(
        lambda: hub.GPT2LMHeadModel(hub.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=64))
    ),
    "bert": Architecture(lambda: hub.BertForMaskedLM(hub.BertConfig(**TEXT)), options=()),
    "vit": Architecture(
        lambda: hub.ViTForImageClassification(hub.ViTConfig(**{**TEXT, **VIT})), images, (), longest=None
    ),
    "whisper": Architecture(
        lambda: hub.WhisperForConditionalGeneration(hub.WhisperConfig(**WHISPER, **SPECIAL)).get_encoder(),
        spectra,
        (),
        "last_hidden_state",
        None,
    ),
}
