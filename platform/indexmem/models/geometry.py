"""Layer and head geometry of any supported decoder, read from its config alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from indexmem.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma3", "gemma3_text")
FULL, SLIDING = "full_attention", "sliding_attention"  # as transformers names them


@dataclass(frozen=True)
class Geometry:
    """The sizes that a learned module depends on; stored in its checkpoint and compared on loading.

    `layers` are those with full attention: eviction acts in them alone, and wherever code numbers layers it numbers
    these. Layers with a sliding window between them (Gemma3) bound their cache by themselves and are left as they are.
    """

    model_type: str
    layers: int  # with full attention
    hidden_size: int  # d_model
    heads: int  # H, query heads
    kv_heads: int  # H_kv
    head_dim: int
    vocab_size: int
    max_positions: int
    sliding_layers: int = 0
    window: int | None = None  # tokens that a sliding layer's query attends to, itself included
    query_scalar: float | None = None  # logits are scaled by query_scalar^-1/2; None: by head_dim^-1/2

    @property
    def group(self) -> int:
        """Query heads that share one KV head, g = H / H_kv."""
        return self.heads // self.kv_heads

    @property
    def attention_width(self) -> int:
        """d = H * head_dim; differs from d_model in some families."""
        return self.heads * self.head_dim

    @property
    def scaling(self) -> float:
        """The backbone's logit scale."""
        return (self.query_scalar or self.head_dim) ** -0.5

    def kv_bytes(self, tokens: int, element_size: int) -> int:
        """Bytes of K and V after `tokens` tokens, over all layers and heads, when nothing is evicted."""
        full = 2 * self.layers * self.kv_heads * self.head_dim * tokens * element_size
        return full + self.window_bytes(tokens, element_size)

    def window_bytes(self, tokens: int, element_size: int) -> int:
        """Of these, bytes of the sliding layers: they hold what the next token attends to besides itself."""
        held = 0 if self.window is None else min(tokens, self.window - 1)
        return 2 * self.sliding_layers * self.kv_heads * self.head_dim * held * element_size

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, config: PretrainedConfig) -> Geometry:
        """Read the geometry. Raises UserError for a family or a layer type that the engine does not handle."""
        if config.model_type not in SUPPORTED_MODEL_TYPES:
            raise UserError(
                f"Model type '{config.model_type}' is not supported. Supported: {', '.join(SUPPORTED_MODEL_TYPES)}."
            )
        model_type, config = config.model_type, config.get_text_config()
        kinds = attention_kinds(config)
        _check_kinds(kinds, config)
        heads = config.num_attention_heads
        return cls(
            model_type=model_type,
            layers=kinds.count(FULL),
            hidden_size=config.hidden_size,
            heads=heads,
            kv_heads=config.num_key_value_heads or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab_size=config.vocab_size,
            max_positions=config.max_position_embeddings,
            sliding_layers=kinds.count(SLIDING),
            window=config.sliding_window if SLIDING in kinds else None,
            query_scalar=getattr(config, "query_pre_attn_scalar", None),
        )


def attention_kinds(config: PretrainedConfig) -> tuple[str, ...]:
    """How each layer of a (text) model attends: FULL, SLIDING, or a kind that is not supported.

    Families without `layer_types` have one window for all layers or none; one that no position can leave is none.
    """
    declared = getattr(config, "layer_types", None)
    if declared is not None:
        return tuple(declared)
    window = getattr(config, "sliding_window", None)
    windowed = window is not None and window < config.max_position_embeddings
    return (SLIDING if windowed else FULL,) * config.num_hidden_layers


def _check_kinds(kinds: tuple[str, ...], config: PretrainedConfig) -> None:
    unknown = sorted(set(kinds) - {FULL, SLIDING})
    if unknown:
        raise UserError(f"Layers of kind {', '.join(unknown)} are not supported. Supported: {FULL}, {SLIDING}.")
    if FULL not in kinds:
        raise UserError(
            f"Every layer of this model has a sliding window of {config.sliding_window} tokens: its cache is bounded "
            "already, and there is nothing to evict. Use a model with full attention in some layers."
        )
    if getattr(config, "use_bidirectional_attention", False):
        raise UserError("This model attends in both directions; eviction needs causal attention.")


def _grouped_query(model_type: str, layers: int, vocab_size: int, max_positions: int) -> Geometry:
    """Models of the 8B class: 32 query heads in groups of 4, 128 wide."""
    return Geometry(model_type, layers, 4096, 32, 8, 128, vocab_size, max_positions)


LLAMA_31_8B = _grouped_query("llama", layers=32, vocab_size=128_256, max_positions=131_072)
MISTRAL_7B_V03 = _grouped_query("mistral", layers=32, vocab_size=32_768, max_positions=32_768)
SMOLLM2_135M = Geometry("llama", 30, 576, 9, 3, 64, vocab_size=49_152, max_positions=8_192)
QWEN3_06B = Geometry("qwen3", 28, 1024, 16, 8, 128, vocab_size=151_936, max_positions=40_960)
QWEN3_8B = _grouped_query("qwen3", layers=36, vocab_size=151_936, max_positions=40_960)

# Published sizes of models that specs name, from their config.json on the hub: for plans made where the model is not at
# hand. A model that is at hand is always read from its own files.
KNOWN_GEOMETRIES: Mapping[str, Geometry] = MappingProxyType(
    {
        "smollm2-135m-instruct": SMOLLM2_135M,
        "HuggingFaceTB/SmolLM2-135M-Instruct": SMOLLM2_135M,
        "Qwen/Qwen3-0.6B": QWEN3_06B,
        "meta-llama/Llama-3.1-8B": LLAMA_31_8B,
        "meta-llama/Llama-3.1-8B-Instruct": LLAMA_31_8B,
        "mistralai/Mistral-7B-v0.3": MISTRAL_7B_V03,
        "mistralai/Mistral-7B-Instruct-v0.3": MISTRAL_7B_V03,
        "Qwen/Qwen3-8B": QWEN3_8B,
    }
)
