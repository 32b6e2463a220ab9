"""indexmem: train, sweep, compare and trust KV-cache eviction methods."""

__version__ = "0.1.0"
