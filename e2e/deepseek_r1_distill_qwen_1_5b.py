"""DeepSeek-R1-Distill-Qwen-1.5B: its geometry (Qwen2: biases of q, k, v; 12 heads over 2) with seeded weights.

``--weights DIR`` takes the trained model as its users have it: a Hugging Face folder.
"""

from assay.tokens.spec import ModelSpec, Prompt

MODEL = ModelSpec(
    name="deepseek-r1-distill-qwen-1.5b",
    source="synthetic:15",
    context=512,
    quants=(),
    streamed=True,
    config={
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "dtype": "float32",
    },
    prompts=(
        Prompt("What is the capital of France?"),
        Prompt("Strike while the iron is hot."),
        Prompt("anvil", chat=False),
        Prompt("0123456789", chat=False),
    ),
)
