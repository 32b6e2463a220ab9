"""A requested budget as tokens of one context, and whether what a method kept is what was requested.

A compressed context takes `fixed + t per_token` bytes when t tokens stay per KV head, in the mean over the heads of all
layers with full attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from indexmem.config.budget import Budget
from indexmem.eviction.context import RowCache
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.selection import BUDGET_TOLERANCE, whole_tokens
from indexmem.models.geometry import Geometry


class BudgetError(ValueError):
    """A method cannot give a budget, or gave another one."""


@dataclass(frozen=True)
class Footprint:
    """What a method's compressed context takes, in bytes over all layers."""

    windows: int  # sliding-window layers
    state: int  # latent memory
    pair: int  # K and V of one token in every head
    keys: int  # indexer keys of one token in every head

    @classmethod
    def of(cls, method: EvictionMethod, geometry: Geometry, tokens: int, element_size: int) -> Footprint:
        """The footprint for a context of so many tokens, K and V taking `element_size` bytes a number."""
        windows = geometry.window_bytes(tokens, element_size)
        indexer_keys = method.indexer_bytes([[1] * geometry.kv_heads] * geometry.layers, element_size)
        keys_and_values = 2 * geometry.layers * geometry.kv_heads * geometry.head_dim * element_size
        return cls(windows, method.state_bytes, keys_and_values, indexer_keys)

    @property
    def fixed(self) -> int:
        """What is there whatever is kept."""
        return self.windows + self.state

    @property
    def per_token(self) -> int:
        """What one token in every head takes."""
        return self.pair + self.keys

    @property
    def smallest(self) -> Budget:
        """The smallest budget in bytes: a single token in every head."""
        return Budget("bytes", self.fixed + self.per_token)

    def bytes_of(self, tokens: float) -> float:
        """What so many tokens per head take."""
        return self.fixed + tokens * self.per_token

    def granted(self, budget: Budget, tokens: int, equal_bytes: bool) -> float:
        """Tokens per KV head, before rounding, that a budget has room for in a context of `tokens` tokens: all or more
        where it keeps everything.

        With `equal_bytes` a ratio or a number of tokens stands for the bytes of K and V of so many tokens. Raises
        BudgetError for bytes that do not hold what the method needs besides tokens, and one token.
        """
        if budget.kind == "bytes":
            room = budget.amount
        else:
            wanted = tokens * (1 - budget.amount) if budget.kind == "ratio" else budget.amount
            if not equal_bytes or self.state + self.keys == 0:
                return wanted
            room = self.windows + wanted * self.pair
        if room < self.smallest.amount:
            what = str(budget) if budget.kind == "bytes" else f"{budget} ({room:,.0f} bytes of K and V)"
            raise BudgetError(
                f"{what} is less than it takes to keep one token: {self.per_token} bytes for the token in all layers "
                f"and heads, and {self.fixed} that are there in any case. The smallest budget here is '{self.smallest}'"
            )
        return (room - self.fixed) / self.per_token


def target_of(method: EvictionMethod, budget: Budget, tokens: int, granted: float) -> float:
    """What `method.compress` is told to keep of what a budget grants, in tokens per KV head: no more than there are.

    Of a ratio, heads that share have as much as heads that do not.
    """
    target = min(tokens, granted)
    return whole_tokens(target, tokens) if budget.kind == "ratio" and method.selection.shares else target


def check_kept(row: RowCache, requested: float, slack: float = 0.0, step: int = 1) -> None:
    """Raises BudgetError unless the row keeps `requested` tokens per head in the mean: no more, and not `step` less.

    Every head keeps one in any case. `slack`: tokens by which a method's rounding may miss (`Selection.slack`); `step`:
    tokens that come and go together (`Selection.step`).
    A row that stores something other than tokens is held to the bytes of so many, to within the smallest step it can
    make.
    """
    if row.representation_bytes is not None:
        wanted = requested * _bytes_per_token(row)
        if abs(row.representation_bytes - wanted) > row.representation_step:
            raise BudgetError(
                f"asked for {wanted:,.0f} bytes ({requested:,.1f} tokens per head), the method stores "
                f"{row.representation_bytes:,} bytes"
            )
        return
    lengths = [length for layer in range(len(row.kept_HK)) for length in row.lengths(layer)]
    kept = sum(lengths) / len(lengths)
    least, most = whole_tokens(requested) - (step - 1), max(1, requested + BUDGET_TOLERANCE)
    if not least - slack <= kept <= most + slack:
        raise BudgetError(
            f"asked for {requested:,.1f} tokens per head, the method keeps {kept:,.1f} in the mean over all heads"
        )


def check_bytes(row: RowCache, footprint: Footprint, requested: float, slack: float = 0.0, step: int = 1) -> None:
    """Raises BudgetError unless the row's measured bytes are those of `requested` tokens: no more, and not `step` less.

    This is about what a method says of itself: state that it holds and does not count would be a budget exceeded.
    """
    measured, wanted = row.kv_bytes + row.indexer_bytes + row.memory_bytes, footprint.bytes_of(requested)
    unit = max(footprint.per_token, row.representation_step)
    least, most = wanted - (step + slack) * unit, wanted + slack * unit + row.representation_step
    if not least <= measured <= most + BUDGET_TOLERANCE:
        raise BudgetError(f"asked for {wanted:,.0f} bytes in all, the method holds {measured:,}")


def _bytes_per_token(row: RowCache) -> int:
    """K and V of one token in every head of every layer."""
    return sum(tensor.shape[0] * tensor.shape[2] * tensor.element_size() for tensor in (*row.keys_HLd, *row.values_HLd))
