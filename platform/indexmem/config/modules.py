"""The modules that are trained, indexer and memory, and what the indexer is taught."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from indexmem.config.reference import Reference, entry_points_of, without_folders
from indexmem.config.section import Section

Across = Literal["head", "layer", "model"]
FLOOR = 0.1  # share of an even budget that every head keeps in any case, where heads share one
# What an indexer is trained as; a checkpoint that is evaluated decides what a spec leaves open of these.
TRAINED = ("scope", "share_every", "activation", "reads", "pair_term", "token_term", "heads", "dim")


class IndexerConfig(Section):
    """Learned indexer: one per layer, or one per `share_every` layers (paper section 3.1)."""

    scope: Literal["layer", "kv_head"] = Field("kv_head", description="one score row per layer (paper) or per KV head")
    reads: Literal["hidden", "key", "key_pre", "key_value"] = Field(
        "hidden",
        description="of each token: the layer's input (paper), its K as cached, its K before RoPE, or its K and V",
    )
    token_term: NonNegativeInt = Field(
        128, description="hidden width of the term of each token alone; 0: no such term (paper)"
    )
    pair_term: bool = Field(
        False, description="add the paper's term: the maximum over queries of a score of pairs of tokens"
    )
    heads: PositiveInt | None = Field(None, description="H_i of the pair term; default H/4, at least 1")
    dim: PositiveInt | None = Field(None, description="d_i of the pair term; default head_dim/8, at least 1")
    activation: Literal["relu", "softplus", "identity"] = "relu"
    share_every: PositiveInt = Field(1, description="layers served by one indexer (IndexCache; paper: 4)")
    share: Across | None = Field(
        None,
        description="which heads share a budget; default: as trained (all if scores compare between heads, else none)",
    )
    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        FLOOR, description="share of an even budget that every head keeps in any case, where heads share one"
    )
    checkpoint: str | None = Field(
        None,
        description="folder or shipped name (testbed-modules, smollm2-modules); default: the spec's own",
    )

    @model_validator(mode="after")
    def _scores_something(self) -> IndexerConfig:
        if not self.pair_term and not self.token_term:
            raise ValueError("an indexer without any term scores nothing: use pair_term=true, or token_term=128")
        if not self.pair_term and (self.heads or self.dim):
            raise ValueError("heads and dim are sizes of the pair term: add pair_term=true, or leave them out")
        if self.pair_term and self.reads != "hidden":
            raise ValueError(f"reads={self.reads} is for the token term alone: pairs need queries; use pair_term=false")
        if self.scope == "layer" and self.share in ("layer", "model"):
            raise ValueError(
                f"share={self.share} has nothing to share out: with scope=layer all heads get the same scores. "
                "Use scope=kv_head, or share=head"
            )
        return self


def module_name(base: str) -> str:
    """Name in a checkpoint of the memory trained for evictions of method `base`."""
    return f"memory-{without_folders(base)}".replace(":", ".")


OUR_FEATURES = ("slots", "positive", "linear")


def _known_features(name: str) -> str:
    offered = (*OUR_FEATURES, *entry_points_of("memories"))
    if name not in offered and Reference.parse(name) is None:
        raise ValueError(f"input should be {', '.join(map(repr, offered))}, or MODULE:CLASS of your own")
    return name


MemoryFeatures = Annotated[str, AfterValidator(_known_features)]


class MemoryConfig(Section):
    """Latent memory of what was evicted (paper section 3.2; docs/method.md names each choice)."""

    features: MemoryFeatures = Field(
        "slots",
        description="slots (data-adaptive), positive (softmax features), linear (the paper's signed map), or "
        "a design of your own, MODULE:CLASS",
    )
    fusion: Literal["joint", "add", "mix"] = Field(
        "joint", description="share the softmax's denominator; add g*m (paper); (1-g)*o + g*m"
    )
    input: Literal["head", "kv_flat", "model"] = Field("head", description="what the map phi reads")
    rotary: Literal["post", "pre"] = Field("post", description="queries and keys after or before rotary embedding")
    value: Literal["attn", "model"] = Field("attn", description="store values before or after the output projection")
    dim: PositiveInt | None = Field(None, description="d_mem (slots: their number); default d/8 (slots: 63)")
    decay: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="lambda: what an old write keeps at a new one")
    write_strength: PositiveFloat = Field(1.0, description="eta: weight of a new write")
    gate_bias: float = Field(-4.0, description="initial gate logit of add and mix")
    bases: tuple[str, ...] = Field(("indexer",), description="methods for whose evictions a memory is trained")

    @model_validator(mode="after")
    def _fits_together(self) -> MemoryConfig:
        if self.fusion == "joint" and self.features == "linear":
            raise ValueError("fusion 'joint' needs positive masses: use features 'slots' or 'positive'")
        if self.features in ("slots", "positive") and (self.input != "head" or self.value != "attn"):
            raise ValueError("input and value other than 'head' and 'attn' need features 'linear'")
        return self


class TargetConfig(Section):
    """What the indexer is distilled towards (docs/method.md, 'Distillation target')."""

    source: Literal["logits", "logprobs", "reconstruction"] = Field(
        "reconstruction",
        description="attention logits while the text is read (paper), log-probabilities, or those of a second reading",
    )
    loss: Literal["kl", "bce", "mse"] = Field(
        "bce", description="over the tokens of a head (paper), or on each score: then scores compare between heads"
    )
    request: str = Field("", description="text between the readings of source reconstruction")
    chunk: PositiveInt = Field(2048, description="tokens that are read again at a time (source reconstruction)")
    scale: Literal["head", "model"] = Field("head", description="1/sqrt(head_dim) (backbone) or 1/sqrt(d) (as printed)")
    heads: Literal["max", "mean"] = Field("max", description="reduction over the query heads that share a score row")
    sinks: NonNegativeInt = Field(4, description="leading tokens left out of the loss")

    @property
    def calibrated(self) -> bool:
        """Whether the loss makes scores comparable between heads and layers."""
        return self.loss != "kl"

    @model_validator(mode="after")
    def _fits_together(self) -> TargetConfig:
        if self.calibrated and self.source == "logits":
            raise ValueError(
                f"loss={self.loss} compares scores with probabilities, and source=logits (the paper's presets) has "
                "none: use loss=kl, or source=logprobs or reconstruction"
            )
        if self.source == "reconstruction" and self.scale != "head":
            raise ValueError("source=reconstruction takes the backbone's own attention: use scale=head")
        fields = type(self).model_fields
        idle = [name for name in ("chunk", "request") if getattr(self, name) != fields[name].default]
        if self.source != "reconstruction" and idle:
            raise ValueError(f"{', '.join(idle)} has no effect without source=reconstruction")
        return self
