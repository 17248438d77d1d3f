"""Small language models whose PyTorch code was changed: what a compiler that knows only "Llama" would get wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from tiny_models import SIZES, randomise, tiny_llama, token_ids
from torch import nn
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from anvil.frontend.capture import capture
from anvil.graph.program import GraphProgram


class PostNormLayer(LlamaDecoderLayer):
    """Norms after the sub-layers instead of before them."""

    def forward(self, hidden_states, attention_mask=None, position_embeddings=None, **kwargs):
        attended, _ = self.self_attn(
            hidden_states=hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings
        )
        hidden_states = hidden_states + self.input_layernorm(attended)
        return hidden_states + self.post_attention_layernorm(self.mlp(hidden_states))


class ParallelLayer(LlamaDecoderLayer):
    """Attention and MLP read the same normalised input."""

    def forward(self, hidden_states, attention_mask=None, position_embeddings=None, **kwargs):
        normed = self.input_layernorm(hidden_states)
        attended, _ = self.self_attn(
            hidden_states=normed, attention_mask=attention_mask, position_embeddings=position_embeddings
        )
        return hidden_states + attended + self.mlp(normed)


class ScaledLayer(LlamaDecoderLayer):
    """Residual branches weighted by constants."""

    def forward(self, hidden_states, attention_mask=None, position_embeddings=None, **kwargs):
        attended, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            position_embeddings=position_embeddings,
        )
        hidden_states = 0.7 * hidden_states + attended * 0.25
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states)) / 3


class GeluMLP(nn.Module):
    """Two matrices and a gelu."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class CappedLlama(LlamaForCausalLM):
    """Logits bounded by a soft cap."""

    def forward(self, input_ids, **kwargs):
        output = super().forward(input_ids, **kwargs)
        output.logits = 20.0 * torch.tanh(output.logits / 20.0)
        return output


def with_layers(layer: type[LlamaDecoderLayer]) -> LlamaForCausalLM:
    model = tiny_llama()
    model.model.layers = nn.ModuleList(layer(model.config, index) for index in range(len(model.model.layers)))
    return randomise(model, seed=3)


def one_layer_different() -> LlamaForCausalLM:
    model = tiny_llama(num_hidden_layers=3)
    model.model.layers[1].mlp = GeluMLP(SIZES["hidden_size"], 24)
    model.model.layers[1].input_layernorm = nn.LayerNorm(SIZES["hidden_size"])
    return randomise(model, seed=4)


def soft_capped() -> LlamaForCausalLM:
    return randomise(CappedLlama(tiny_llama().config), seed=5)


class WrittenOutBlock(nn.Module):
    """Every part in another spelling than Llama's: fused qkv, heads third, half-width tables, explicit scores."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.scale = nn.Parameter(torch.ones(width))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def rotate(self, x, cos, sin):
        low, high = x.chunk(2, dim=-1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)

    def forward(self, x, cos, sin, hidden):
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, tokens, 3, self.heads, self.head_dim)
        q, k, v = qkv.unbind(2)
        q, k = self.rotate(q, cos, sin).transpose(1, 2), self.rotate(k, cos, sin).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(hidden, -torch.inf)
        mixed = torch.softmax(scores, dim=-1) @ v.transpose(1, 2)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.scale
        gate, up = self.gate_up(normed.reshape(-1, width)).chunk(2, dim=-1)
        return x + self.down(torch.sigmoid(gate) * gate * up).view(batch, tokens, width)


class WrittenOut(nn.Module):
    """A decoder that is no Hugging Face model: learned positions beside rotary tables that are sliced."""

    def __init__(
        self, vocabulary: int = SIZES["vocab_size"], width: int = 32, heads: int = 4, longest: int = 64
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(WrittenOutBlock(width, heads) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)
        angles = torch.arange(longest)[:, None] * 100.0 ** (-torch.arange(0, width // heads, 2) * heads / width)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, input_ids):
        tokens = input_ids.shape[1]
        place = torch.arange(tokens)
        x = self.tokens(input_ids) + self.places(place)
        cos, sin = self.cos[:tokens, None], self.sin[:tokens, None]
        hidden = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), diagonal=1)
        for block in self.blocks:
            x = block(x, cos, sin, hidden)
        return self.head(x)


def gemma2() -> Gemma2ForCausalLM:
    """Norm weights plus one, four norms a layer, capped scores, alternating windows."""
    config = Gemma2Config(
        **SIZES, head_dim=8, query_pre_attn_scalar=8, sliding_window=4, attn_logit_softcapping=5.0,
        final_logit_softcapping=10.0, attn_implementation="eager",
    )  # fmt: skip
    return randomise(Gemma2ForCausalLM(config))


def deepseek_v3() -> DeepseekV3ForCausalLM:
    """Latent attention whose values are narrower than its keys, YaRN, routed and shared experts."""
    config = DeepseekV3Config(
        vocab_size=SIZES["vocab_size"], hidden_size=32, intermediate_size=44, moe_intermediate_size=20,
        num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24,
        kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2, max_position_embeddings=64,
        num_mtp_layers=0,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
                         "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    )  # fmt: skip
    model = randomise(DeepseekV3ForCausalLM(config))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(-0.3, 0.4, len(buffer)))
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": tiny_llama,
    "post_norm": lambda: with_layers(PostNormLayer),
    "parallel_residual": lambda: with_layers(ParallelLayer),
    "scaled_residual": lambda: with_layers(ScaledLayer),
    "one_layer_different": one_layer_different,
    "multi_head": lambda: tiny_llama(num_key_value_heads=4),
    "multi_query": lambda: tiny_llama(num_key_value_heads=1),
    "eight_heads": lambda: tiny_llama(num_attention_heads=8, num_key_value_heads=4),
    "head_dim_not_width_over_heads": lambda: tiny_llama(head_dim=6),
    "untied": lambda: tiny_llama(tie_word_embeddings=False),
    "biases": lambda: tiny_llama(attention_bias=True, mlp_bias=True),
    "gelu": lambda: tiny_llama(hidden_act="gelu_pytorch_tanh"),
    "soft_capped": soft_capped,
    "eager_attention": lambda: tiny_llama(attn_implementation="eager"),
    "rope_linear": lambda: tiny_llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
    "rope_llama3": lambda: tiny_llama(
        rope_parameters={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
            "rope_theta": 1e4,
        }
    ),
    "sliding_window": lambda: randomise(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))),
    "head_norms": lambda: randomise(Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8))),
    "gemma2": gemma2,
    "written_out": lambda: randomise(WrittenOut()),
}


@cache
def captured(name: str) -> tuple[nn.Module, GraphProgram]:
    """A model and its program ids [B, S] -> logits [B, S, V], captured once for all tests of a process."""
    model = MODELS[name]()
    hugging_face = hasattr(model, "config")
    options = {"kwargs": {"use_cache": False}, "select": lambda output: output.logits} if hugging_face else {}
    return model, capture(model, (token_ids(2, 5),), ({0: "B", 1: "S"},), name, ranges={"S": (1, 64)}, **options)
