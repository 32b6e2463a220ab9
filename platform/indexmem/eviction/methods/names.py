"""What eviction methods are called, and what follows from the name alone: known without importing any of them."""

from __future__ import annotations

from indexmem.config.modules import module_name
from indexmem.config.schema import MethodConfig

FULL_CACHE = "full"
EVICTS_NOTHING = frozenset({FULL_CACHE, "xkv"})  # a memory of what they evict would stay empty
INDEXMEM, INDEXMEM_PARTS, MEMORY_SUFFIX = "indexmem", "indexer+memory", "+memory"
TRAINED_BY_SPEC = frozenset({"indexer", "locret"})
PRETRAINED = frozenset({"kvzap", "fastkvzip", "qfilter", "expected_attention_stats"})  # weights of others
# Methods that can also rank a cache while it grows.
DECODING = ("indexer", "snapkv", "tova", "keydiff", "knorm", "streaming_llm", "random")
SHIPPED = frozenset(
    {
        *(FULL_CACHE, "indexer", "locret", "xkv", "snapkv", "pyramidkv", "tova", "keydiff", "knorm"),
        *("expected_attention", "observed_attention", "lagkv", "leverage", "non_causal_attention", "compactor"),
        *("cur", "cap", "streaming_llm", "random", "running_mean", "adakv", "criticalkv", "critical_adakv"),
        *("kvzip", "duo_attention", *PRETRAINED),
    }
)  # of the registry, which is held to it by a test


def base_name(config: MethodConfig) -> str:
    """Name of the method that ranks tokens, without its memory."""
    return (INDEXMEM_PARTS if config.name == INDEXMEM else config.name).removesuffix(MEMORY_SUFFIX)


def is_shipped(config: MethodConfig) -> bool:
    """Whether the method is one of ours; False for somebody's own, for a wrong name, and for a memory of nothing."""
    base = base_name(config)
    return base in SHIPPED and not (base in EVICTS_NOTHING and base != config.name)


def needs_training(config: MethodConfig) -> bool:
    """Whether the method uses weights that a spec trains, and names no folder of its own to take them from."""
    return bool(trained_modules(config))


def trained_modules(config: MethodConfig) -> frozenset[str]:
    """Names, as in a checkpoint, of the modules that the method takes from what its spec trains."""
    found: frozenset[str] = frozenset()
    if "base" in config.params:
        found = trained_modules(MethodConfig.model_validate(config.params["base"]))
    if config.params.get("checkpoint"):
        return found
    base = base_name(config)
    return found | ({base} & TRAINED_BY_SPEC) | ({module_name(base)} if base != config.name else set())
