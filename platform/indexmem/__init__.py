"""indexmem: train, sweep, compare and trust KV-cache eviction methods."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from indexmem.api import GridResult, TrainedModules, compare, run_grid, train_modules
    from indexmem.generation.index_mem_cache import IndexMemCache

__version__ = "0.1.0"
__all__ = ["GridResult", "IndexMemCache", "TrainedModules", "compare", "run_grid", "train_modules"]


def __getattr__(name: str) -> Any:
    """The Python API, imported when it is first used: `indexmem --help` need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'indexmem' has no attribute '{name}'")
    home = "indexmem.generation.index_mem_cache" if name == "IndexMemCache" else "indexmem.api"
    return getattr(import_module(home), name)
