"""DeepSeek-R1-Distill-Llama-8B: its geometry (Llama 3.1: scaled rotary frequencies, GQA 32:8) with seeded weights.

``--weights DIR`` takes the trained model as its users have it: a Hugging Face folder.
"""

from assay.tokens.spec import PROMPTS, SPECIAL_IDS, ModelSpec

MODEL = ModelSpec(
    name="deepseek-r1-distill-llama-8b",
    source="synthetic:18",
    context=512,
    quants=(),
    streamed=True,
    config={
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        **SPECIAL_IDS,
        "dtype": "float32",
    },
    prompts=PROMPTS,
)
