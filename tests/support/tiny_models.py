"""Seeded models of every supported family, three layers with full attention each, with a tokenizer that fits them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from tiny_tokenizers import tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

FULL_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")  # full attention in every layer
SLIDING_FAMILIES = ("gemma3_text", "gemma3")  # the second with an unused vision tower
FAMILIES = (*FULL_FAMILIES, *SLIDING_FAMILIES)
FULL_LAYERS, SLIDING_LAYERS, WINDOW = (1, 4, 5), (0, 2, 3, 6), 24
VOCABULARY = 512


def tiny_config(family: str, **changes):
    """GQA 4/2, head_dim 16 with hidden size 48 != 4 * 16 where the family allows it."""
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if family in ("qwen2", "phi3"):
        settings["hidden_size"] = 64
    if family == "mistral":
        settings["sliding_window"] = None
    if family == "gemma3_text":
        settings |= {
            "num_hidden_layers": 7,
            "layer_types": ["full_attention" if n in FULL_LAYERS else "sliding_attention" for n in range(7)],
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 20,  # not head_dim: the logit scale is its own
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        }
    if family == "gemma3":
        vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        vision |= {"image_size": 28, "patch_size": 14}
        text = tiny_config("gemma3_text", **changes).to_dict()
        image = {"boi_token_index": 509, "eoi_token_index": 510, "image_token_index": 511, "mm_tokens_per_image": 1}
        return AutoConfig.for_model(family, text_config=text, vision_config=vision, **image)
    return AutoConfig.for_model(family, **(settings | changes))


@cache
def tiny_model(family: str, attention: str = ATTENTION_NAME, seed: int = 0) -> PreTrainedModel:
    register_attention()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(family), attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger weights: attention that prefers some tokens. Uneven norm weights: a k_norm of ones would give all
            # keys the same length, which Knorm cannot rank.
            if family in SLIDING_FAMILIES and parameter.dim() == 1:  # norms that add 1 to a weight of 0
                parameter.add_(torch.rand_like(parameter) - 0.5)
            else:
                parameter.mul_(4.0 if parameter.dim() > 1 else 0.5 + torch.rand_like(parameter))
    model.generation_config.eos_token_id = 1
    return model.eval().requires_grad_(False)


def tiny_backbone(family: str = "llama") -> Backbone:
    model = tiny_model(family)
    return Backbone(model, tiny_tokenizer(), Geometry.of(model.config), f"tiny-{family}")


def save_tiny_model(folder: Path, family: str = "llama", **changes) -> Path:
    """A model folder on disk, for tests that go through a spec."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(family, **changes), dtype=torch.float32)
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def random_ids(length: int, seed: int = 0) -> list[int]:
    """Distinct tokens: a repeated one has equal key norms in the first layer, and ties are no test of a ranking."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randperm(VOCABULARY - 2, generator=generator)[:length] + 2).tolist()
