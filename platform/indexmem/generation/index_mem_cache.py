"""`past_key_values` for transformers' `generate` that evicts from what it reads first, with latent memory if trained.

    cache = IndexMemCache.from_pretrained("smollm2-modules", model, compression_ratio=0.9)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=64)

The first forward pass over the cache reads the prompt with full attention and is then evicted from; its answer's first
token comes from that pass. What is read later, an answer or a further question, is held in full. Evicted K and V are
freed. Heads may hold different numbers of tokens: they lie in the engine's ragged buffers (engine/cache.py).
Shapes: R rows, S columns read so far, H KV heads, Q query heads, n new tokens, d head_dim.
"""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from indexmem.config.modules import FLOOR, Across
from indexmem.errors import UserError
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.names import INDEXMEM
from indexmem.eviction.modules_source import local_or_downloaded
from indexmem.generation.first_pass import FirstPass
from indexmem.generation.held_rows import HeldRows
from indexmem.generation.new_columns import NewColumns
from indexmem.generation.passes import Keywords, WatchedCache, our_attention, reads_in_chunks, watch
from indexmem.generation.settings import MethodName, budget_of, geometry_of, method_of
from indexmem.models.attention import tapping
from indexmem.models.geometry import attention_kinds


@dataclass
class _Running:
    """A forward pass that has begun."""

    reading: NewColumns
    view: FirstPass | HeldRows
    borrowed: ExitStack  # to close when it ends


class IndexMemCache(WatchedCache):
    """A cache for one batch of conversations and one model."""

    _held: HeldRows | None  # after the first pass
    _running: _Running | None
    _read_RS: Tensor | None  # which columns were tokens
    _context: int  # columns of the first pass
    _broken: bool  # a pass over what is held did not finish

    def __init__(
        self,
        model: PreTrainedModel,
        method: MethodName,
        compression_ratio: float | None = None,
        *,
        budget: str | None = None,
        modules: str | Path | None = None,
        sinks: int = 4,
        share: Across | None = None,
        floor: float = FLOOR,
    ) -> None:
        """`compression_ratio`: share of the context that is evicted; or `budget`: '90%', '512 tokens' (per KV head) or
        '8 MiB' (all that is held of a row's context). `modules`: folder, shipped name or Hub id of trained modules.
        `sinks`: first tokens that always stay. `share`, `floor`: which heads share a budget of a trained indexer (None:
        as trained), and what part of an even one each keeps in any case.

        Raises UserError that says what is wrong and what to give.
        """
        super().__init__(layers=[])
        self._model, self._geometry = model, geometry_of(model)
        self._budget = budget_of(compression_ratio, budget)
        folder = None if modules is None else str(local_or_downloaded(modules))
        self._method = method_of(method, MethodContext(self._geometry, str(model.device), folder, share, floor))
        self._sinks = sinks
        watch(model)
        self.reset()

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        model: PreTrainedModel,
        compression_ratio: float | None = None,
        *,
        method: MethodName = INDEXMEM,
        **settings: Any,
    ) -> Self:
        """With trained modules: a folder that training wrote, a shipped name, or a Hub id; as `IndexMemCache` else."""
        return cls(model, method, compression_ratio, modules=source, **settings)

    @torch.inference_mode()
    def begin(self, model: nn.Module, kwargs: Keywords) -> Keywords:
        """Of a pass of the model: open what it needs. Raises UserError for what this cache cannot take part in."""
        if model is not self._model:
            raise UserError("This IndexMemCache was made for another model. Make one for each model.")
        if self._broken:
            raise UserError("A pass over this IndexMemCache did not finish. Empty it with reset(), and read anew.")
        if kwargs.get("pixel_values") is not None:
            raise UserError("IndexMemCache reads text alone, and there are images among the inputs.")
        if self._held is None and reads_in_chunks():
            raise UserError(
                "IndexMemCache reads a context in one pass, which it then evicts from: leave out prefill_chunk_size."
            )
        reading = NewColumns.of(kwargs, self._read_RS)
        done = reading.arguments(kwargs)
        with ExitStack() as borrowed:
            borrowed.enter_context(our_attention(self._model))
            if self._held is None:
                first = self._first_pass(reading.valid_RT)
                done |= borrowed.enter_context(tapping(self._model, first.visit, first.see_window))
            else:
                self._open(self._held, reading)
                borrowed.enter_context(self._held.ragged.memories.adding_residuals(self._model))
            self._running = _Running(reading, self._held or first, borrowed.pop_all())
        return done | {"kv_view": self, "attention_mask": None, "use_cache": True}

    @torch.inference_mode()
    def end(self, output: Any) -> Any:
        """Of a pass: what was read is held, that of the first pass without what is evicted."""
        running, self._running = self._running, None
        if running is None:
            return None
        running.borrowed.close()
        if output is None:
            self._broken = isinstance(running.view, HeldRows)
            return None
        if isinstance(running.view, FirstPass):
            self._held = HeldRows(running.view.compressed())
            self._context = running.reading.new
        self._read_RS = running.reading.valid_RT
        return running.reading.restored(output)

    @torch.inference_mode()
    def update(self, key_states, value_states, layer_idx, cache_kwargs=None):  # type: ignore[no-untyped-def]
        """transformers' hook: K and V [R, H, n, d] of a layer's new tokens."""
        self._view().store(layer_idx, key_states, value_states, cache_kwargs)
        return key_states, value_states

    def attend(self, layer: int, query_RQnd: Tensor, key_RHnd: Tensor, value_RHnd: Tensor, scaling: float) -> Tensor:
        """Attention of the new tokens to what the cache holds, and to memory: [R, n, Q, d]."""
        with torch.inference_mode():
            output_RnQd = self._view().attend(layer, query_RQnd, key_RHnd, value_RHnd, scaling)
        return output_RnQd.clone() if torch.is_grad_enabled() else output_RnQd  # autograd takes no inference tensor

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns read, evicted ones included: new tokens stand behind all of them."""
        return 0 if self._read_RS is None else self._read_RS.shape[1]

    def get_mask_sizes(self, cache_position: Tensor, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + cache_position.shape[0], 0

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def kv_bytes(self) -> int:
        """Bytes of the buffers of K and V, with their padding and the room for new tokens."""
        return 0 if self._held is None else self._held.ragged.nbytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of what is remembered of evicted tokens."""
        return 0 if self._held is None else self._held.ragged.memories.nbytes

    @property
    def held_tokens(self) -> Tensor:
        """Tokens that each KV head holds: [layers with full attention, rows, heads]."""
        if self._held is None:
            raise UserError("This IndexMemCache holds nothing yet: give it to a model first.")
        return self._held.lengths_LRH()

    def reset(self) -> None:
        """Hold nothing, as new: the next pass is evicted from."""
        self._held = self._running = self._read_RS = None
        self._context, self._broken = 0, False

    def reorder_cache(self, beam_idx: Tensor) -> NoReturn:
        raise UserError("IndexMemCache cannot serve beam search: use num_beams=1, greedy or with do_sample=True.")

    def crop(self, max_length: int) -> NoReturn:
        raise UserError(
            "IndexMemCache cannot take back tokens, as assisted generation does: leave out assistant_model and "
            "prompt_lookup_num_tokens."
        )

    def batch_repeat_interleave(self, repeats: int) -> NoReturn:
        raise UserError("IndexMemCache cannot be repeated: give the model a batch in which rows repeat.")

    def batch_select_indices(self, indices: Tensor) -> NoReturn:
        raise UserError("IndexMemCache cannot give up rows: make a new one for a smaller batch.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """What is held is copied; model and method are shared."""
        copy = type(self).__new__(type(self))
        memo |= {id(self): copy, id(self._model): self._model, id(self._method): self._method}
        copy.__dict__.update({name: deepcopy(value, memo) for name, value in vars(self).items()})
        return copy

    def __repr__(self) -> str:
        return f"IndexMemCache({self._budget.phrase}, {self.get_seq_length()} columns read, {self.kv_bytes:,} bytes)"

    def _first_pass(self, valid_RL: Tensor) -> FirstPass:
        kinds = attention_kinds(self._model.get_decoder().config)
        return FirstPass(
            self._method, self._geometry, kinds, self._budget, self._sinks, valid_RL, self._model.dtype.itemsize
        )

    def _open(self, held: HeldRows, reading: NewColumns) -> None:
        """Room for a later pass, and nothing of what its mask hides."""
        assert self._read_RS is not None
        before_RS = reading.valid_RT[:, : self._read_RS.shape[1]]
        if not torch.equal(before_RS, self._read_RS):
            if not torch.equal(before_RS[:, : self._context], self._read_RS[:, : self._context]):
                raise UserError("attention_mask hides tokens of the context, which the cache has evicted from already.")
            held.forget(self._read_RS[:, self._context :], before_RS[:, self._context :])
        held.open(reading.fed_Rn)

    def _view(self) -> FirstPass | HeldRows:
        if self._running is None:
            raise UserError(
                "Give an IndexMemCache to the model that it was made for, by name: model(..., past_key_values=cache)."
            )
        return self._running.view
