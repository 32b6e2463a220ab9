"""What a forward pass brings to a cache: which columns are tokens, where they stand, in which order they are fed.

Columns are those of `attention_mask`: all that was read before, then the new ones. Later passes of a batch may have
padding anywhere, between an answer and the next question; they are fed with each row's padding first.
Shapes: R rows, S columns read before, n new columns, T = S + n, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from indexmem.errors import UserError

BY_COLUMN = ("input_ids", "inputs_embeds", "position_ids")  # arguments of the model that go column by column


@dataclass(frozen=True)
class NewColumns:
    """The columns of one pass."""

    valid_RT: Tensor  # False is padding
    new: int
    order_Rn: Tensor | None  # in which the new columns are fed; None: as they come

    @classmethod
    def of(cls, kwargs: dict[str, Any], read_RS: Tensor | None) -> Self:
        """From the model's arguments and which columns read before are tokens (None: nothing was read).

        Raises UserError for arguments that do not go with what was read.
        """
        tokens = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs.get("inputs_embeds")
        if tokens is None:
            raise UserError("The model got neither input_ids nor inputs_embeds.")
        rows, new = tokens.shape[:2]
        if read_RS is None:
            read_RS = torch.zeros(rows, 0, dtype=torch.bool, device=tokens.device)
        if len(read_RS) != rows:
            raise UserError(
                f"This cache holds {len(read_RS)} rows, and the model got {rows}. Make a new IndexMemCache for each "
                "batch, or empty this one with reset()."
            )
        valid_RT = _valid(kwargs.get("attention_mask"), read_RS, rows, new)
        new_Rn = valid_RT[:, -new:]
        padding_first = bool((new_Rn[:, 1:] >= new_Rn[:, :-1]).all()) if new > 1 else True
        order_Rn = None
        if read_RS.shape[1] and not padding_first:
            order_Rn = new_Rn.byte().argsort(dim=1, stable=True)
        return cls(valid_RT, new, order_Rn)

    @property
    def fed_Rn(self) -> Tensor:
        """Which of the new columns are tokens, in the order in which they are fed."""
        new_Rn = self.valid_RT[:, -self.new :]
        return new_Rn if self.order_Rn is None else new_Rn.gather(1, self.order_Rn)

    def arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The model's arguments for this pass; tokens stand where their row has them, without its padding."""
        done = dict(kwargs)
        if done.get("position_ids") is None:
            position_RT = self.valid_RT.long().cumsum(1) - 1
            done["position_ids"] = position_RT[:, -self.new :].clamp(min=0)
        if self.order_Rn is not None:
            for name in BY_COLUMN:
                if done.get(name) is not None:
                    done[name] = _reordered(done[name], self.order_Rn)
        return done

    def restored(self, output: Any) -> Any:
        """The model's output with logits in the order of the given columns."""
        logits_RnV = getattr(output, "logits", None)
        if self.order_Rn is not None and logits_RnV is not None and logits_RnV.shape[1] == self.new:
            output.logits = _reordered(logits_RnV, self.order_Rn.argsort(dim=1))
        return output


def _valid(mask: Any, read_RS: Tensor, rows: int, new: int) -> Tensor:
    if mask is None:
        return torch.nn.functional.pad(read_RS, (0, new), value=True)
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        raise UserError(
            "IndexMemCache needs the attention_mask of the tokenizer: a row of zeros and ones for each text."
        )
    wanted = (rows, read_RS.shape[1] + new)
    if tuple(mask.shape) != wanted:
        raise UserError(
            f"attention_mask is {tuple(mask.shape)}, and this pass needs {wanted}: {read_RS.shape[1]} columns that the "
            f"cache has read and {new} new ones. A new conversation needs a new IndexMemCache, or reset() of this one."
        )
    valid_RT = mask.bool()
    before_RS = valid_RT[:, : read_RS.shape[1]]
    if not torch.equal(before_RS, read_RS) and bool((before_RS & ~read_RS).any()):
        raise UserError("attention_mask shows tokens that were padding when the cache read them.")
    return valid_RT


def _reordered(states: Tensor, order_Rn: Tensor) -> Tensor:
    """[R, n, ...], or [1, n] for all rows."""
    states = states.expand(len(order_Rn), *states.shape[1:])
    index = order_Rn.reshape(*order_Rn.shape, *[1] * (states.dim() - 2)).expand_as(states)
    return states.gather(1, index)
