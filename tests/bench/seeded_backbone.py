"""Backbones of real sizes with weights drawn on the device: speed and memory do not depend on values."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.backbone import Backbone
from indexmem.models.geometry import Geometry

WORDS = 1000
GEOMETRIES = {
    "llama-8b": {
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256},
    },
    "tiny": {
        **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1024},
    },
}


def seeded_backbone(
    name: str, dtype: torch.dtype, device: torch.device | str, tokenizer: PreTrainedTokenizerBase | None = None
) -> Backbone:
    """One of GEOMETRIES, with the vocabulary of `tokenizer` if given, else a tokenizer of the words "0" to "999"."""
    register_attention()
    sizes = GEOMETRIES[name] if tokenizer is None else GEOMETRIES[name] | {"vocab_size": len(tokenizer)}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    config = AutoConfig.for_model("llama", **sizes, **rotary, max_position_embeddings=131072)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME, dtype=dtype)
    if tokenizer is None:
        tokenizer = _numbers()
    else:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    return Backbone(model.eval().requires_grad_(False), tokenizer, Geometry.of(config), name)


def _numbers() -> PreTrainedTokenizerBase:
    words = Tokenizer(models.WordLevel({str(number): number for number in range(WORDS)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words)
