"""The frozen LLM: resolve a name, check it, load it with its tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file, extract_commit_hash

from indexmem.config.schema import ModelConfig
from indexmem.errors import UserError
from indexmem.fetching import NotAtHand, about_to_fetch
from indexmem.files import expanded
from indexmem.models import assets
from indexmem.models.attention import ATTENTION_NAME, register_attention
from indexmem.models.folder_hash import folder_hash
from indexmem.models.geometry import KNOWN_GEOMETRIES, Geometry
from indexmem.models.prompt import check_tokenizer


@dataclass(frozen=True)
class Backbone:
    """A frozen causal LM in eval mode, its tokenizer and geometry."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    geometry: Geometry
    fingerprint: str

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer (the generation config's, as kvpress uses)."""
        eos = self.model.generation_config.eos_token_id if self.model.generation_config else None
        return tuple(eos) if isinstance(eos, list) else (() if eos is None else (eos,))


def resolve(config: ModelConfig) -> str:
    """Folder or hub id to load from; fetches a built-in asset if it is not cached yet.

    Raises UserError when the name is a path that does not exist or is not a model folder.
    """
    if assets.is_builtin(config.id):
        return str(assets.ensure_model(config.id))
    path = expanded(config.id)
    looks_like_path = config.id.startswith((".", "/", "~")) or config.id.count("/") > 1
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UserError(f"Model folder {path} has no config.json; point model.id at a Hugging Face model folder.")
        return str(path.absolute())
    if looks_like_path:
        raise UserError(
            f"Model path {path} does not exist. Give an existing folder, a hub id such as 'org/name', "
            f"or a built-in model: {', '.join(assets.model_names())}."
        )
    assets.check_shipped(config.id)
    if "/" not in config.id:
        raise UserError(
            f"Unknown model '{config.id}'. Built-in models: {', '.join(assets.model_names())}; "
            "otherwise give a folder or a hub id such as 'org/name'."
        )
    return config.id


def inspect(config: ModelConfig) -> Geometry:
    """Geometry from the model's config.json alone: nothing is loaded. In a dry run, of a model that is not here, the
    published one. Raises UserError when it cannot be had.
    """
    try:
        return Geometry.of(_read_config(config))
    except NotAtHand:
        if config.id not in KNOWN_GEOMETRIES:
            raise
        return KNOWN_GEOMETRIES[config.id]


def check_packing(config: ModelConfig, length: int, again: int = 0) -> None:
    """Raise UserError for a model whose positions in one document would depend on what else is in its row.

    That is other documents and, where texts are read twice, the `again` tokens of a second reading. With longrope the
    rotary tables of a whole call are those of long texts as soon as one position is beyond what the model was first
    trained for (Phi3).
    """
    text_config = _read_config(config).get_text_config()
    rope = getattr(text_config, "rope_parameters", None) or {}
    longest = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") != "longrope" or longest is None or length + again <= longest:
        return
    if again:
        raise UserError(
            f"target.source=reconstruction: the second reading of {length} tokens ends at position {length + again}, "
            f"and more than {longest} would change all positions of a row ('{config.id}' has longrope). "
            "Use a smaller distill.length or target.chunk, or target.source=logprobs."
        )
    raise UserError(
        f"distill.packing: documents of more than {longest} tokens would change the positions of all others in "
        f"their row ('{config.id}' has longrope). Use distill.length={longest} or less, or distill.packing=false."
    )


def _read_config(config: ModelConfig) -> PretrainedConfig:
    source = resolve(config)
    try:
        return AutoConfig.from_pretrained(source, revision=config.revision, trust_remote_code=config.trust_remote_code)
    except OSError as error:
        if not Path(source).is_dir():
            about_to_fetch(f"The model {config.id}")
        raise UserError(f"Model '{config.id}' could not be read: {str(error).splitlines()[0]}") from None


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer. Raises UserError when it has none, or one that does not go with its embeddings."""
    source = resolve(config)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        if not Path(source).is_dir():
            about_to_fetch(f"The tokenizer of {config.id}")
        raise UserError(
            f"The tokenizer of model '{config.id}' could not be read: {str(error).splitlines()[0]} "
            "Expected the files that it was saved with, such as tokenizer.json, beside its weights."
        ) from None
    check_tokenizer(tokenizer, config.id, inspect(config).vocab_size)
    return tokenizer


def load_backbone(config: ModelConfig) -> Backbone:
    """Load weights and tokenizer, frozen, in eval mode, with the tapped attention function."""
    register_attention()
    geometry = inspect(config)
    source = resolve(config)
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if config.device == "auto" else config.device)
    model = AutoModelForCausalLM.from_pretrained(
        source,
        revision=config.revision,
        dtype=getattr(torch, config.dtype),
        attn_implementation=ATTENTION_NAME,
        trust_remote_code=config.trust_remote_code,
    )
    model.eval().requires_grad_(False)
    model.to(device)  # type: ignore[arg-type]  # transformers' wrapper hides the signature
    return Backbone(model, load_tokenizer(config), geometry, model_fingerprint(config))


def model_fingerprint(config: ModelConfig) -> str:
    """Identity of weights, tokenizer, code and dtype: the hub revision, or a hash of all that is in the folder.

    Raises UserError for a hub model whose revision cannot be told.
    """
    source = resolve(config)
    if Path(source).is_dir():
        identity = folder_hash(Path(source))
    else:
        commit = getattr(_read_config(config), "_commit_hash", None) or config.revision
        if commit is None:
            raise UserError(f"The revision of '{config.id}' cannot be told; set model.revision so that rows name it.")
        identity = f"{source}@{commit}"
    return hashlib.sha256(f"{identity}:{config.dtype}{_foreign_code(config)}".encode()).hexdigest()[:16]


def _foreign_code(config: ModelConfig) -> str:
    """Repositories besides the model's own whose code is run, and their commits."""
    references = getattr(_read_config(config), "auto_map", None) if config.trust_remote_code else None
    named = {name for name in _flat((references or {}).values()) if "--" in name}
    # transformers puts a hub model's own repository before its names as well.
    others = sorted(name for name in named if not name.startswith(f"{config.id}--"))
    return "".join(f":{name}@{_commit_of(name)}" for name in others)


def _flat(values: Iterable[str | Sequence[str | None]]) -> Iterator[str]:
    """Class names of an auto_map, which gives a tokenizer two: slow and fast."""
    for value in values:
        yield from [value] if isinstance(value, str) else filter(None, value)


def _commit_of(name: str) -> str | None:
    """Commit of the repository that `REPOSITORY--MODULE.CLASS` names, as transformers would load it now."""
    repository, _, member = name.partition("--")
    return extract_commit_hash(cached_file(repository, f"{member.rpartition('.')[0]}.py"), None)
