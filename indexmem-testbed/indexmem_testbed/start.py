"""Weights that a pre-training begins with when it goes on from another one's model."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.models.assets import WEIGHTS, shipped_models
from indexmem_testbed.model import MEND, TRAINED, read_json

SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings", "rope_parameters", "tie_word_embeddings"),
)


def start_folder(name: str) -> Path:
    """Folder of a model that this package carries, or that a pre-training wrote. Raises UserError if there is none."""
    folder = shipped_models().get(name, expanded(name))
    for needed in (WEIGHTS, TRAINED):
        if not (folder / needed).is_file():
            raise UserError(
                f"pretrain.start_from={name}: {folder / needed} is missing. Name the folder that a pre-training says "
                f"at its end, or a model of this package: {', '.join(shipped_models()) or 'none'}."
            )
    return folder


def load_start(model: LlamaForCausalLM, folder: Path) -> None:
    """Give a new model the weights of an earlier one.

    Raises UserError when that has another architecture, or a file of it is damaged.
    """
    own, theirs = model.config.to_dict(), read_json(folder / "config.json")
    other = [f"{key} is {theirs.get(key)!r}, not {own[key]!r}" for key in SAME if theirs.get(key) != own[key]]
    if other:
        raise UserError(
            f"The model in {folder} cannot be trained on as pretrain.architecture says: {'; '.join(other)}. "
            "Set pretrain.architecture to that of the model."
        )
    try:
        weights = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder / WEIGHTS} is damaged: {error} {MEND}") from None
    if missing != ["lm_head.weight"] or unexpected:  # it is tied to the embeddings, and saved as such
        named = ", ".join([*sorted(set(missing) - {"lm_head.weight"}), *unexpected][:3])
        raise UserError(f"{folder / WEIGHTS} lacks tensors or has others, {named} among them. {MEND}")
