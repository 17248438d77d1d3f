"""A LLaMA of a few layers with seeded random weights: small enough for every target, odd enough to find bugs.

The vocabulary (259) and the MLP width (172) are no multiple of any vector width, and the embeddings are untied.
"""

from assay.tokens.spec import SPECIAL_IDS, ModelSpec, Prompt

MODEL = ModelSpec(
    name="llama-tiny",
    source="synthetic:5",
    context=256,
    emulated_tokens=8,
    quants=("fp32", "w4-g32", "w8", "w8a8"),
    config={
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 259,
        "hidden_size": 96,
        "intermediate_size": 172,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        **SPECIAL_IDS,
        "dtype": "float32",
    },
    prompts=(
        Prompt("What is the capital of France?"),
        Prompt("Strike while the iron is hot."),
        Prompt("anvil", chat=False),
        Prompt("0123456789", chat=False),
        Prompt("A longer prompt, so that prefill has more rows than one tile of the matrix kernel.", chat=False),
        Prompt("é ü ß 漢字", chat=False),
        Prompt("\n\n\t", chat=False),
        Prompt("x", chat=False),
    ),
)
