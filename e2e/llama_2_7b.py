"""LLaMA-2-7B: the exact geometry with seeded synthetic weights, as the trained ones cannot be had everywhere.

``--weights DIR`` takes the trained model as its users have it: a Hugging Face folder.
"""

from assay.tokens.spec import PROMPTS, SPECIAL_IDS, ModelSpec

MODEL = ModelSpec(
    name="llama-2-7b",
    source="synthetic:7",
    context=512,
    quants=("fp32", "w4-g32"),
    streamed=True,
    config={
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        **SPECIAL_IDS,
        "dtype": "float32",
    },
    prompts=PROMPTS,
)
