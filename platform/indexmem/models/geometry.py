"""Layer and head geometry of any supported decoder, read from its config alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from indexmem.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "phi3")


@dataclass(frozen=True)
class Geometry:
    """The sizes that a learned module depends on; stored in its checkpoint and compared on loading."""

    model_type: str
    layers: int
    hidden_size: int  # d_model
    heads: int  # H, query heads
    kv_heads: int  # H_kv
    head_dim: int
    vocab_size: int
    max_positions: int

    @property
    def group(self) -> int:
        """Query heads that share one KV head, g = H / H_kv."""
        return self.heads // self.kv_heads

    @property
    def attention_width(self) -> int:
        """d = H * head_dim; differs from d_model in some families."""
        return self.heads * self.head_dim

    def kv_bytes(self, tokens: int, element_size: int) -> int:
        """Bytes of K and V for `tokens` tokens over all layers and heads."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens * element_size

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, config: PretrainedConfig) -> Geometry:
        """Read the geometry. Raises UserError for a family or a layer type that the engine does not handle."""
        if config.model_type not in SUPPORTED_MODEL_TYPES:
            raise UserError(
                f"Model type '{config.model_type}' is not supported. Supported: {', '.join(SUPPORTED_MODEL_TYPES)}."
            )
        window = getattr(config, "sliding_window", None)
        if (
            window is not None
            and getattr(config, "use_sliding_window", True)
            and window < config.max_position_embeddings
        ):
            raise UserError(
                f"This model has sliding-window attention of {window} tokens, which eviction does not handle yet. "
                "Use a model with full attention in every layer."
            )
        heads = config.num_attention_heads
        return cls(
            model_type=config.model_type,
            layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            heads=heads,
            kv_heads=config.num_key_value_heads or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab_size=config.vocab_size,
            max_positions=config.max_position_embeddings,
        )
