"""The trained indexer and the latent memory as kvpress presses: no Ray, no grid, a model and its checkpoint folder.

Both act in layers with full attention alone; those with a sliding window keep their cache. Heads that share a budget
keep different numbers of tokens: nothing is freed then, but ignored (eviction/press_sharing.py).
Shapes: B batch, H KV heads, L context tokens, K kept tokens, d head_dim, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import snapshot_download
from kvpress import BasePress, ScorerPress
from kvpress.utils import get_prerope_query_states
from torch import Tensor, nn
from transformers import PreTrainedModel

from indexmem.config.modules import FLOOR, Across
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import SIZES, read_config, save_modules
from indexmem.eviction.indexer import NAME, IndexerStack
from indexmem.eviction.memory.stack import MemoryStack, module_name
from indexmem.eviction.methods.kvpress_scores import window_by_age
from indexmem.eviction.methods.learned import selection_of
from indexmem.eviction.methods.shared import SharingConfig
from indexmem.eviction.press_memory import AttachedMemories
from indexmem.eviction.press_sharing import SharedBudget, check_maskable, mask
from indexmem.eviction.press_sliding import fit_masks
from indexmem.eviction.ranking import comparable, keep, rank
from indexmem.eviction.selection import PER_HEAD, PerHead, Shared, tokens_left
from indexmem.files import expanded
from indexmem.models.attention import layer_number
from indexmem.models.geometry import Geometry

Trained = dict[str, Any]  # a checkpoint's record of how its weights came to be


@dataclass(kw_only=True, eq=False)
class IndexerPress(ScorerPress):
    """Keeps what the distilled indexer (eviction/indexer.py) scores highest, and the first `n_sink` tokens always.

    `share` says which heads share a budget, and `floor` how much of an even one each keeps in any case
    (eviction/selection.py). What is evicted of a shared budget stays in the cache, and is masked in the cache that was
    filled last.
    """

    indexers: IndexerStack = field(repr=False)
    n_sink: int = 4
    share: Across | None = None  # None: as trained
    floor: float = FLOOR
    trained: Trained = field(default_factory=dict, repr=False)
    _shared_BGL: Tensor | None = field(default=None, init=False, repr=False)
    _budget: SharedBudget = field(default_factory=SharedBudget, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises UserError for a `share` or `floor` that is not allowed."""
        super().__post_init__()
        _ = self.selection  # raises

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        compression_ratio: float = 0.0,
        n_sink: int = 4,
        share: Across | None = None,
        floor: float = FLOOR,
    ) -> Self:
        """From a checkpoint folder or, where there is no such folder, a Hub id. Raises UserError if it is neither."""
        folder = checkpoint_folder(source)
        return cls(
            compression_ratio=compression_ratio,
            indexers=IndexerStack.load(folder).eval().requires_grad_(False),
            n_sink=n_sink,
            share=share,
            floor=floor,
            trained=read_config(folder)["trained"],
        )

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a checkpoint folder that `from_pretrained` and specs (`indexer.checkpoint`) read."""
        return save_modules({NAME: self.indexers}, folder, self.trained)

    @property
    def selection(self) -> PerHead | Shared:
        """Whose budget a head's tokens come out of."""
        SharingConfig.of({"share": self.share or "head", "floor": self.floor})  # raises
        return selection_of(self.share, self.floor, self.trained, self.indexers.shape)

    def post_init_from_model(self, model: PreTrainedModel) -> None:
        """Raises UserError when the indexer was trained for a model of other sizes."""
        check_fits(self.indexers.geometry, model)
        fit_masks(model)

    @torch.no_grad()
    def score(
        self, module: nn.Module, hidden_states: Tensor, keys: Tensor, values: Tensor, attentions: Tensor, kwargs: Any
    ) -> Tensor:
        """Importance [B, H, L], infinite for sinks. Layers that share an indexer must be visited in order."""
        batch, kv_heads, length = keys.shape[:3]
        layer = layer_number(module)
        assert layer is not None, "layers with a sliding window are not scored"
        indexer = self.indexers.owned_by(layer)
        if indexer is not None:
            lengths_B = torch.full((batch,), length, device=keys.device)
            pairs = self.indexers.shape.pair_term  # else nobody asks for the queries
            query_BQLd = get_prerope_query_states(module, hidden_states) if pairs else None
            self._shared_BGL = indexer.to(keys.device)(hidden_states, query_BQLd, lengths_B)
        assert self._shared_BGL is not None, "layers are visited in order"
        scores_BHL = self._shared_BGL.to(keys.device).expand(batch, kv_heads, length).clone()
        scores_BHL[..., : self.n_sink] = float("inf")
        return scores_BHL

    def compress(
        self, module: nn.Module, hidden_states: Tensor, keys: Tensor, values: Tensor, attentions: Tensor, kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As ScorerPress, but by our rule (eviction/ranking.py): ties go to the earlier token, order is kept."""
        if self.compression_ratio == 0 or layer_number(module) is None:
            return keys, values
        selection = self.selection
        if isinstance(selection, Shared):
            check_maskable(module)
        scores_BHL = self.score(module, hidden_states, keys, values, attentions, kwargs)
        if not isinstance(selection, Shared):
            kept_BHK = keep_best(scores_BHL, self.compression_ratio)
            return take(keys, kept_BHK), take(values, kept_BHK)
        scores_BHL = comparable(scores_BHL, self.n_sink)
        for settled, leaves_BHL in self._budget.settle(selection, module, scores_BHL, self.compression_ratio):
            mask(settled, leaves_BHL)
        return keys, values


@dataclass(kw_only=True, eq=False)
class MemoryPress(BasePress):
    """Any ScorerPress plus the latent memory trained for it: what it evicts is written down instead of lost.

    The memory is written during prefill, onto the cache, and read by every later forward pass over that cache. For
    this, hooks are registered on the model when the press is first entered, and stay after it is left; `detach`
    removes them. They change nothing for other caches. A pass over a cache with memory computes attention twice.

    Around an IndexerPress whose heads share a budget, what is evicted stays in the cache, and the hooks ignore it.
    """

    press: ScorerPress
    memories: MemoryStack = field(repr=False)
    n_sink: int = 4  # kept whatever `press` scores, as in training

    def __post_init__(self) -> None:
        """Raises UserError for a press that is more than a scorer: its other half would be lost without notice."""
        if type(self.press).compress not in (ScorerPress.compress, IndexerPress.compress):
            raise UserError(
                f"{type(self.press).__name__} decides more than scores, which a memory around it would ignore; "
                "give MemoryPress a press that only scores, such as SnapKVPress."
            )
        self._attached = AttachedMemories(self.memories, get_prerope_query_states)
        self._budget = SharedBudget()

    @property
    def compression_ratio(self) -> float:
        """Fraction of the context that is evicted: the wrapped press' own."""
        return self.press.compression_ratio

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        self.press.compression_ratio = ratio

    def post_init_from_model(self, model: PreTrainedModel) -> None:
        """Register the hooks. Raises UserError when the memory was trained for a model of other sizes."""
        self.press.post_init_from_model(model)
        check_fits(self.memories.geometry, model)
        self._attached.attach(model)
        fit_masks(model)

    def detach(self) -> None:
        """Remove the hooks from all models; safe to repeat.

        Caches filled by this press then answer without memory, and those of a shared budget with all of their context.
        """
        self._attached.detach()

    @torch.no_grad()
    def compress(
        self, module: nn.Module, hidden_states: Tensor, keys: Tensor, values: Tensor, attentions: Tensor, kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.compression_ratio == 0 or layer_number(module) is None:
            return keys, values
        scores_BHL = self.press.score(module, hidden_states, keys, values, attentions, kwargs)
        scores_BHL = window_by_age(self.press, scores_BHL)
        cache, rotary = kwargs["past_key_values"], kwargs["position_embeddings"]
        selection = self.press.selection if isinstance(self.press, IndexerPress) else PER_HEAD
        if not isinstance(selection, Shared):
            kept_BHK = keep_best(scores_BHL, self.compression_ratio, self.n_sink)
            leaves_BHL = torch.ones_like(scores_BHL, dtype=torch.bool).scatter_(2, kept_BHK, False)
            self._attached.write(module, cache, keys, values, leaves_BHL, rotary)
            return take(keys, kept_BHK), take(values, kept_BHK)
        scores_BHL = comparable(scores_BHL, self.n_sink)
        for settled, leaves_BHL in self._budget.settle(selection, module, scores_BHL, self.compression_ratio):
            held = cache.layers[int(settled.layer_idx)]  # type: ignore[arg-type]
            self._attached.write(settled, cache, held.keys, held.values, leaves_BHL, rotary, stay=True)
        return keys, values


@dataclass(kw_only=True, eq=False)
class IndexMemPress(MemoryPress):
    """IndexMem: the indexer, and the memory trained for its evictions, of one checkpoint."""

    press: IndexerPress

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        compression_ratio: float = 0.0,
        n_sink: int = 4,
        share: Across | None = None,
        floor: float = FLOOR,
    ) -> Self:
        """As IndexerPress. Raises UserError also for a checkpoint without a memory for the indexer."""
        folder = checkpoint_folder(source)
        memories = MemoryStack.load(folder, NAME).eval().requires_grad_(False)
        press = IndexerPress.from_pretrained(folder, compression_ratio, n_sink, share, floor)
        return cls(press=press, memories=memories, n_sink=n_sink)

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write a checkpoint folder with both modules."""
        return save_modules({NAME: self.press.indexers, module_name(NAME): self.memories}, folder, self.press.trained)


def keep_best(scores_BHL: Tensor, ratio: float, n_sink: int = 0) -> Tensor:
    """Positions [B, H, K] that stay when a fraction `ratio` is evicted, ascending, the first `n_sink` among them."""
    ranking = rank(scores_BHL.flatten(0, 1), n_sink)
    return keep(ranking, tokens_left(scores_BHL.shape[-1], ratio)).unflatten(0, scores_BHL.shape[:2])


def take(x_BHLd: Tensor, kept_BHK: Tensor) -> Tensor:
    """The kept tokens' rows [B, H, K, d]."""
    return x_BHLd.gather(2, kept_BHK[..., None].expand(-1, -1, -1, x_BHLd.shape[-1]))


def check_fits(trained: Geometry, model: PreTrainedModel) -> None:
    """Raise UserError that lists every size in which the model differs from the one that modules were trained for."""
    found = Geometry.of(model.config)
    differences = [
        f"{name}: trained for {getattr(trained, name)}, model has {getattr(found, name)}"
        for name in SIZES
        if getattr(trained, name) != getattr(found, name)
    ]
    if differences:
        raise UserError(
            f"The press was trained for another model ({'; '.join(differences)}). "
            "Use the model that its checkpoint names, or distil for this one."
        )


def checkpoint_folder(source: str | Path) -> Path:
    """`source` if it is a folder, else the downloaded snapshot of that Hub id. Raises UserError if there is none."""
    if expanded(source).is_dir():
        return expanded(source)
    try:
        return Path(snapshot_download(str(source)))
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"'{source}' is neither a checkpoint folder nor a Hub id that can be read: {reason}") from None
