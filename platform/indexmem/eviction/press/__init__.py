"""The trained indexer and the latent memory as kvpress presses: a model and a checkpoint folder, nothing else.

Both act in layers with full attention alone; those with a sliding window keep their cache. Heads that share a budget
keep different numbers of tokens: nothing is freed then, but ignored (shared_budget.py).
"""

from indexmem.eviction.press.indexer_press import IndexerPress
from indexmem.eviction.press.memory_press import IndexMemPress, MemoryPress

__all__ = ["IndexMemPress", "IndexerPress", "MemoryPress"]
