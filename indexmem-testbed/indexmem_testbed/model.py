"""The testbed itself: an ordinary Llama with tied embeddings, so that everything that loads a Llama loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from indexmem.errors import UserError
from indexmem.models.assets import WEIGHTS
from indexmem_testbed.config import ArchitectureConfig
from indexmem_testbed.tokenizer import load_tokenizer

INITIAL_STD = 0.02
TRAINED = "trained.json"
MEND = "Copy the folder again from where it came from, or pre-train it again."
STARTED_FROM = "started_from"  # in it: what the file of the model said that training began with
STATE = "state.pt"  # of a checkpoint: what training needs to go on, and nobody else


def llama_config(architecture: ArchitectureConfig, tokenizer: PreTrainedTokenizerBase) -> LlamaConfig:
    """The Hugging Face configuration of the testbed."""
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=architecture.hidden,
        intermediate_size=architecture.intermediate,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        max_position_embeddings=architecture.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": architecture.rope_theta},
        tie_word_embeddings=True,
        initializer_range=INITIAL_STD,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=False,
    )


def parameter_count(architecture: ArchitectureConfig) -> int:
    """Parameters of the model, the shared embeddings once; no memory is taken."""
    with torch.device("meta"):
        model = LlamaForCausalLM(llama_config(architecture, load_tokenizer()))
    return sum(parameter.numel() for parameter in model.parameters())


def make_model(architecture: ArchitectureConfig, seed: int) -> LlamaForCausalLM:
    """Seeded weights in float32. Projections back into the residual stream start smaller, as in GPT-2."""
    torch.manual_seed(seed)
    model: LlamaForCausalLM = AutoModelForCausalLM.from_config(
        llama_config(architecture, load_tokenizer()), attn_implementation="sdpa", dtype=torch.float32
    )
    scale = (2 * architecture.layers) ** -0.5
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(scale)
            layer.mlp.down_proj.weight.mul_(scale)
    return model


class WeightedLoss(nn.Module):
    """The model with its training loss; what DDP and the compiler wrap."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_BL: Tensor, weights_BL: Tensor) -> Tensor:
        """Sum over tokens of weight x cross-entropy; weights_BL[b, i] is that of predicting ids_BL[b, i]."""
        logits_BLV = self.logits(ids_BL)[:, :-1]
        losses_N = F.cross_entropy(logits_BLV.flatten(0, 1).float(), ids_BL[:, 1:].flatten(), reduction="none")
        return (losses_N * weights_BL[:, 1:].flatten()).sum()

    def logits(self, ids_BL: Tensor) -> Tensor:
        """[B, L, V]. On a GPU in bfloat16, with weights that stay float32."""
        with torch.autocast(ids_BL.device.type, torch.bfloat16, enabled=ids_BL.device.type == "cuda"):
            logits_BLV: Tensor = self.model(input_ids=ids_BL, use_cache=False).logits
        return logits_BLV


def save_model(model: LlamaForCausalLM, folder: Path, trained: Mapping[str, Any]) -> None:
    """A model folder as Hugging Face lays it out, in bfloat16, with its tokenizer; `trained` says how it was made."""
    state = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    del state["lm_head.weight"]  # tied to the embeddings
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    kept = {"use_cache": True, "dtype": "bfloat16", "architectures": [LlamaForCausalLM.__name__]}
    LlamaConfig.from_dict(model.config.to_dict() | kept).save_pretrained(folder)
    GenerationConfig(bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id).save_pretrained(
        folder
    )
    load_tokenizer().save_pretrained(folder)
    (folder / TRAINED).write_text(json.dumps(dict(trained), indent=1) + "\n", encoding="utf-8")


def read_trained(folder: Path) -> dict[str, Any]:
    """What `save_model` was told about the training. Raises UserError for a damaged file."""
    return read_json(folder / TRAINED)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a model's folder. Raises UserError where there is none."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}. {MEND}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: expected an object. {MEND}")
    return content
