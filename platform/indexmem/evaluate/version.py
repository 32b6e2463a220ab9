"""Which engine computes a grid's answers."""

# Part of every cell's identity. Raise it when a change to the engine, to a method of ours, or to a default of
# `eviction` or `grid.decoding` changes answers: old rows then no longer count as the same cell.
# tests/evaluate/test_engine_version.py notices changes.
ENGINE_VERSION = 2


def computed_by(code: str) -> str:
    """What a row says of its code. `code`: hash of a source that is not ours, or ""."""
    return f"engine {ENGINE_VERSION}, {code}" if code else f"engine {ENGINE_VERSION}"
