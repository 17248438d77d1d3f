"""A DeepSeek-V3 of a few layers with seeded random weights: latent attention, a mixture of experts, YaRN positions.

One dense layer, then layers that send each token to 3 of 8 experts (two groups of four are kept) and a shared one.
Values are narrower than keys, 20 and 24 + 8 components. The longest position that YaRN was made from is passed by the
prompts.
"""

from assay.tokens.spec import SPECIAL_IDS, ModelSpec, Prompt

MODEL = ModelSpec(
    name="deepseek-v3-tiny",
    source="synthetic:11",
    context=256,
    emulated_tokens=8,
    positions=600,
    config={
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 259,
        "hidden_size": 80,
        "intermediate_size": 140,
        "moe_intermediate_size": 44,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_interleave": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
        "num_mtp_layers": 0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        **SPECIAL_IDS,
        "dtype": "float32",
    },
    prompts=(
        Prompt("What is the capital of France?"),
        Prompt("Strike while the iron is hot."),
        Prompt("anvil", chat=False),
        Prompt("A longer prompt: prefill then has more rows than one tile of the matrix kernel has.", chat=False),
        Prompt("é ü ß 漢字", chat=False),
        Prompt("x", chat=False),
    ),
)
