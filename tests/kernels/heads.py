"""What the tests of attention's kernels share: the heads of the models, and how exact a result has to be."""

EXACT = {"rtol": 1e-5, "atol": 2e-6}
ROUNDED = {"rtol": 1.6e-2, "atol": 1.2e-2}
"""Of bf16: half a unit in the last place of the result, of each probability, and of what codes stand for."""
MODELS = {
    "SmolLM2": (9, 3, 64),
    "Llama 8B and Mistral": (32, 8, 128),
    "Qwen2.5": (14, 2, 64),
    "Qwen3": (16, 8, 128),
    "Gemma 3": (4, 1, 256),
    "80": (4, 4, 80),
    "96": (12, 2, 96),
}
"""Query heads, key/value heads, head dim."""
