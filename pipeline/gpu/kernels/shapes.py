"""The models that the kernels are compiled, tuned and measured for."""

from typing import get_args

from pipeline.errors import ConfigError
from pipeline.gpu.kernels.variant import ModelShape
from pipeline.gpu.kv.dtype import KvDtype

MODELS = {
    shape.name: shape
    for shape in (
        # name, query heads, key/value heads, head dim, hidden, feed-forward, vocabulary
        ModelShape("SmolLM2-135M", 9, 3, 64, 576, 1536, 49_152),
        ModelShape("Llama-3.2-1B", 32, 8, 64, 2048, 8192, 128_256),
        ModelShape("Llama-3.1-8B", 32, 8, 128, 4096, 14_336, 128_256),
        ModelShape("Mistral-7B", 32, 8, 128, 4096, 14_336, 32_768),
        ModelShape("Qwen2.5-0.5B", 14, 2, 64, 896, 4864, 151_936, has_qkv_bias=True),
        ModelShape("Qwen2.5-7B", 28, 4, 128, 3584, 18_944, 152_064, has_qkv_bias=True),
        ModelShape("Qwen3-0.6B", 16, 8, 128, 1024, 3072, 151_936),
        ModelShape("Qwen3-8B", 32, 8, 128, 4096, 12_288, 151_936),
        ModelShape("Gemma-3-270M", 4, 1, 256, 640, 2048, 262_144),
        ModelShape("Gemma-3-1B", 4, 1, 256, 1152, 6912, 262_144),
        ModelShape("Gemma-3-4B", 8, 4, 256, 2560, 10_240, 262_208),
    )
}
"""By name, all with bf16 keys and values."""

KV_DTYPES: tuple[KvDtype, ...] = tuple(each for each in get_args(KvDtype) if each != "fp32")
"""What a GPU may store keys and values as."""


def find_shapes(names: list[str], kv_dtypes: tuple[KvDtype, ...] = KV_DTYPES) -> list[ModelShape]:
    """Those of these names, all without one, each with every kv_dtype. Raises ConfigError."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise ConfigError(f"no shape is called {unknown[0]}; there are {', '.join(MODELS)}")
    chosen = [MODELS[name] for name in names or MODELS]
    return [shape._replace(kv_dtype=kv_dtype) for shape in chosen for kv_dtype in kv_dtypes]
