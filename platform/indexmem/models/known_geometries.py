"""Published sizes of models that specs name, for plans made where the model itself is not at hand.

From the `config.json` of each hub repository. A model that is at hand is always read from its own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from huggingface_hub import try_to_load_from_cache

from indexmem.config.schema import ModelConfig
from indexmem.models.backbone import resolve
from indexmem.models.geometry import Geometry


def _grouped_query(model_type: str, layers: int, vocab_size: int, max_positions: int) -> Geometry:
    """Models of the 8B class: 32 query heads in groups of 4, 128 wide."""
    return Geometry(model_type, layers, 4096, 32, 8, 128, vocab_size, max_positions)


LLAMA_31_8B = _grouped_query("llama", layers=32, vocab_size=128_256, max_positions=131_072)
MISTRAL_7B_V03 = _grouped_query("mistral", layers=32, vocab_size=32_768, max_positions=32_768)
QWEN3_8B = _grouped_query("qwen3", layers=36, vocab_size=151_936, max_positions=40_960)

KNOWN_GEOMETRIES: Mapping[str, Geometry] = MappingProxyType(
    {
        "meta-llama/Llama-3.1-8B": LLAMA_31_8B,
        "meta-llama/Llama-3.1-8B-Instruct": LLAMA_31_8B,
        "mistralai/Mistral-7B-v0.3": MISTRAL_7B_V03,
        "mistralai/Mistral-7B-Instruct-v0.3": MISTRAL_7B_V03,
        "Qwen/Qwen3-8B": QWEN3_8B,
    }
)


def is_at_hand(config: ModelConfig) -> bool:
    """Whether the model's config lies on this machine. Raises UserError as `resolve` does."""
    source = resolve(config)
    if Path(source).is_dir():
        return True
    return isinstance(try_to_load_from_cache(source, "config.json", revision=config.revision), str)
