"""Which tokens of a KV cache to keep, by a trained indexer. Needs torch and safetensors, and nothing of indexmem.

    indexer = ExportedIndexer.load("FOLDER")                                   # what `indexmem export` wrote
    scores_NHT = indexer.scores_of_all(states)                         # one states_TX for each layer
    kept = indexer.keep(scores_NHT, ratio=0.75)                        # kept[layer][head]: positions, ascending

`states_TX` is what the indexer reads of one sequence in a layer (`indexer.reads`):

    hidden      input of the attention block, after the layer's input norm                       [T, hidden_size]
    key         K as the cache holds it, after RoPE, the heads of a token side by side           [T, H d]
    key_pre     the same before RoPE
    key_value   K as cached, then V                                                              [T, 2 H d]

Batches of ragged length are loops over sequences. Without a pair term a score depends on its own token alone, so chunks
of a prefill may be scored as they come and joined along T.
`edit_function` makes of it what LMCache's SDK applies to a request's cache (docs/serving.md).

Shapes: N layers with full attention, H KV heads, T tokens, X what is read of a token, K kept tokens, d head_dim, G
score rows (H, or 1 for all heads), h and i heads and width of the pair term, S queries, Q query heads, D all KV heads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

FORMAT = 1
WEIGHTS, CONFIG = "indexer.safetensors", "config.json"
ACTIVATIONS = {"relu": torch.relu, "softplus": F.softplus, "identity": lambda z: z}
NORM_EPS = 1e-6
BLOCK_ELEMENTS = 2**20  # pair scores alive at once
TOLERANCE = 1e-6  # of budgets: 240 * (1 - 0.9) is 23.999999999999996, and means 24


class ExportedIndexer(nn.Module):
    """The indexers of all layers, and the rule by which tokens are kept."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.shape, self.rule = config["model"], config["indexer"], config["keep"]
        owners = range(0, self.model["layers"], self.shape["share_every"])
        self.layers = nn.ModuleList(LayerIndexer(self.shape, self.model) for _ in owners)

    @classmethod
    def load(cls, folder: str | Path) -> ExportedIndexer:
        """On CPU, in fp32. Raises ValueError for a folder of another format."""
        config = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
        if config.get("format") != FORMAT:
            raise ValueError(f"{folder}: expected an export of format {FORMAT}, got {config.get('format')}")
        indexer = cls(config)
        indexer.layers.load_state_dict(load_file(Path(folder) / WEIGHTS))
        return indexer.eval().requires_grad_(False)

    @property
    def reads(self) -> str:
        """What `scores` takes of each token."""
        return str(self.shape["reads"])

    @torch.no_grad()
    def scores(self, layer: int, states_TX: Tensor, query_pre_QTd: Tensor | None = None) -> Tensor:
        """Importance [H, T] of one sequence's tokens in a layer, counted among those with full attention.

        `query_pre_QTd`: the layer's queries before RoPE; needed with a pair term, and ignored without. Raises
        ValueError in a layer without an indexer of its own: it takes the scores of `owner(layer)`.
        """
        if layer != self.owner(layer):
            raise ValueError(f"layer {layer} has no indexer: it takes the scores of layer {self.owner(layer)}")
        scores_GT = self.layers[layer // self.shape["share_every"]](states_TX, query_pre_QTd)
        return scores_GT.expand(self.model["kv_heads"], -1)

    def owner(self, layer: int) -> int:
        """The layer whose scores this one takes; itself, unless layers share indexers."""
        return layer - layer % int(self.shape["share_every"])

    def scores_of_all(self, states: Sequence[Tensor], queries: Sequence[Tensor] | None = None) -> Tensor:
        """`scores` of all layers, [N, H, T]."""
        query = [None] * len(states) if queries is None else queries
        owned = {n: self.scores(n, states[n], query[n]) for n in range(len(states)) if n == self.owner(n)}
        return torch.stack([owned[self.owner(n)] for n in range(len(states))])

    def keep(
        self,
        scores_NHT: Tensor,
        *,
        ratio: float | None = None,
        tokens: float | None = None,
        share: str | None = None,
        floor: float | None = None,
        sinks: int | None = None,
    ) -> list[list[Tensor]]:
        """Kept positions of each head of each layer, ascending int64.

        `ratio`: the share of tokens that is evicted; or `tokens`: how many each head keeps, in the mean. `share`: whose
        tokens compete: those of a "head", of a "layer" or of the whole "model"; `floor`: the share of an even budget
        that each head keeps in any case; `sinks`: leading tokens that stay. Default: as config.json says.
        Raises ValueError for scores that are not numbers.
        """
        rule = self.rule
        share, floor = share or rule["share"], rule["floor"] if floor is None else floor
        if share != "head" and self.shape["rows"] == 1:
            raise ValueError("this indexer gives all heads of a layer the same scores: use share='head'")
        if scores_NHT.isnan().any():
            raise ValueError("scores contain NaN")
        ranked_NHT = scores_NHT.float().clone()
        ranked_NHT[..., : rule["sinks"] if sinks is None else sinks] = float("inf")
        target = per_head(scores_NHT.shape[-1], ratio, tokens, whole=share != "head")
        if share == "head":
            return [list(layer_HK) for layer_HK in best_of_each(ranked_NHT, target)]
        if share == "layer":
            kept_NHT = torch.stack([best_together(layer_HT, target, floor) for layer_HT in ranked_NHT])
        else:
            kept_NHT = best_together(ranked_NHT.flatten(0, 1), target, floor).view_as(ranked_NHT)
            # Layers that share an indexer keep the same: of a tie at the edge of the budget, nothing.
            groups = kept_NHT.split(self.shape["share_every"])
            kept_NHT = torch.cat([group.all(dim=0, keepdim=True).expand_as(group) for group in groups])
        return [[kept_T.nonzero()[:, 0] for kept_T in layer_HT] for layer_HT in kept_NHT]


class LayerIndexer(nn.Module):
    """imp[t] = token(x_t) + max over s >= t of sum_h alpha[s, h] act(q[s, h] . k[t]); either term may be absent."""

    def __init__(self, shape: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        super().__init__()
        self.shape = shape
        kv_width = model["kv_heads"] * model["head_dim"]
        width = {"hidden": model["hidden_size"], "key": kv_width, "key_pre": kv_width, "key_value": 2 * kv_width}
        inputs, rows, heads, dim = width[shape["reads"]], shape["rows"], shape["heads"], shape["dim"]
        if shape["pair_term"]:
            self.q_proj = nn.Linear(model["heads"] * model["head_dim"], rows * heads * dim, bias=False)
            self.k_proj = nn.Linear(inputs, dim, bias=False)
            self.gate = nn.Linear(inputs, rows * heads, bias=False)
        if shape["token_term"]:
            hidden = shape["token_term"]
            self.token = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, rows))

    def forward(self, states_TX: Tensor, query_pre_QTd: Tensor | None = None) -> Tensor:
        """Scores [G, T]."""
        states_1TX = states_TX[None].float()  # one sequence as a batch, as it was trained
        scores_GT = self.token(states_1TX).mT[0] if self.shape["token_term"] else states_1TX.new_zeros(())
        if not self.shape["pair_term"]:
            return scores_GT
        if query_pre_QTd is None:
            raise ValueError("this indexer has a pair term: give the layer's queries before RoPE")
        return scores_GT + self._best_of_pairs(states_1TX, query_pre_QTd)

    def _best_of_pairs(self, states_1TX: Tensor, query_pre_QTd: Tensor) -> Tensor:
        """The maximum over queries at or after each token [G, T], block by block: no [T, T] matrix is made."""
        rows, heads, dim = self.shape["rows"], self.shape["heads"], self.shape["dim"]
        act, tokens = ACTIVATIONS[self.shape["activation"]], states_1TX.shape[1]
        query = self.q_proj(query_pre_QTd[None].float().transpose(1, 2).flatten(2)).unflatten(-1, (rows, heads, dim))
        q_GhTi = F.rms_norm(query, (dim,), eps=NORM_EPS)[0].permute(1, 2, 0, 3)
        k_iT = F.rms_norm(self.k_proj(states_1TX), (dim,), eps=NORM_EPS)[0].T
        alpha_GhT = (self.gate(states_1TX)[0].unflatten(-1, (rows, heads)) / (heads * dim) ** 0.5).permute(1, 2, 0)
        best_GT = torch.full((rows, tokens), float("-inf"), device=k_iT.device)
        block = max(16, min(tokens, BLOCK_ELEMENTS // max(tokens, 1)))
        for start in range(0, tokens, block):
            stop = min(start + block, tokens)
            z_GST = [act(q_GhTi[:, head, start:stop] @ k_iT[:, :stop]) for head in range(heads)]
            scores_GST = z_GST[0] * alpha_GhT[:, 0, start:stop, None]
            for head in range(1, heads):
                scores_GST.addcmul_(z_GST[head], alpha_GhT[:, head, start:stop, None])
            future_SS = torch.ones(stop - start, stop - start, dtype=torch.bool, device=k_iT.device).triu(1)
            scores_GST[..., start:].masked_fill_(future_SS, float("-inf"))
            best_GT[:, :stop] = best_GT[:, :stop].maximum(scores_GST.amax(dim=1))
        return best_GT


def per_head(length: int, ratio: float | None, tokens: float | None, whole: bool) -> float:
    """Tokens that each head keeps of `length`, in the mean."""
    if (ratio is None) == (tokens is None):
        raise ValueError("give ratio (the share that is evicted) or tokens (per head), and not both")
    if tokens is not None:
        return min(float(length), tokens)
    target = length * (1 - ratio)  # type: ignore[operator]
    return max(1, int(target)) if whole else target


def best_of_each(ranked_NHT: Tensor, target: float) -> Tensor:
    """Each head's best tokens, [N, H, K]; of equals the earlier ones."""
    count = max(1, min(ranked_NHT.shape[-1], int(target)))
    return ranked_NHT.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(dim=-1).values


def best_together(ranked_XT: Tensor, target: float, floor: float) -> Tensor:
    """Mark the best (head, token) pairs of X heads that share a budget, [X, T]; of equals the earlier tokens."""
    heads, length = ranked_XT.shape
    pairs = max(heads, min(heads * length, int(heads * target + TOLERANCE)))
    least = max(1, int(floor * (pairs // heads) + TOLERANCE))
    place_XT = ranked_XT.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    ranked_XT = ranked_XT.masked_fill(place_XT < least, float("inf"))
    order = ranked_XT.T.flatten().argsort(descending=True, stable=True)[:pairs]  # at each token, heads in their order
    return torch.zeros(length * heads, dtype=torch.bool, device=order.device).scatter(0, order, True).view(length, -1).T


Scores = Callable[[Sequence[int]], Tensor]  # token ids -> scores [N, H, T]
Edit = Callable[[Mapping[Any, Tensor], Sequence[int]], tuple[Tensor, list[int]]]


def scores_of_cache(indexer: ExportedIndexer, kv_2NTD: Tensor) -> Tensor:
    """Scores [N, H, T] by what the cache itself holds. Raises ValueError for an indexer that reads more than that."""
    if indexer.reads not in ("key", "key_value"):
        raise ValueError(
            f"this indexer reads {indexer.reads}, and the cache holds K after RoPE and V: give `scores`, or export an "
            "indexer trained with indexer.reads=key or key_value"
        )
    states_NTX = kv_2NTD[0] if indexer.reads == "key" else torch.cat((kv_2NTD[0], kv_2NTD[1]), dim=-1)
    return indexer.scores_of_all(list(states_NTX))


def positions(scores_NHT: Tensor, count: int, sinks: int, alike: bool = True) -> Tensor:
    """Positions [N, H, count] that fit a tensor in which all heads hold as many tokens.

    `alike`: one set for all heads and layers, by each token's best score among them; else each head its own best.
    """
    ranked_NHT = scores_NHT.float().clone()
    ranked_NHT[..., :sinks] = float("inf")
    if alike:
        ranked_NHT = ranked_NHT.amax(dim=(0, 1)).expand_as(ranked_NHT)
    return best_of_each(ranked_NHT, count)


def edit_function(
    indexer: ExportedIndexer,
    ratio: float,
    *,
    chunk: int = 256,
    alike: bool = True,
    scores: Scores | None = None,
    inv_freq: Tensor | None = None,
) -> Edit:
    """An edit function of LMCache's SDK: `batch.modify(edit_function(indexer, 0.5))`.

    It takes a request's KV [2, N, T, D] with its token ids, and gives back those that stay; their number is rounded
    down to whole chunks of the server (`--chunk-size`), one at least. `alike`: as `positions` has it. `scores`: where
    they come from if not from the cache. `inv_freq` [r / 2], the model's rotary frequencies: K is turned back by as
    many positions as were dropped, so that the next query, which the engine counts from the shorter cache, sees every
    token at its true distance; without it distances shrink. The ids name the new cache: those that most heads keep.
    """

    def edit(tensors: Mapping[Any, Tensor], ids: Sequence[int]) -> tuple[Tensor, list[int]]:
        kv_2NTD = next(tensor for kind, tensor in tensors.items() if getattr(kind, "name", kind) == "KV")
        heads, length = indexer.model["kv_heads"], kv_2NTD.shape[2]
        scores_NHT = scores_of_cache(indexer, kv_2NTD) if scores is None else scores(ids)
        count = max(1, int(length * (1 - ratio)) // chunk) * chunk
        if count >= length:
            return kv_2NTD, list(ids)
        kept_NHK = positions(scores_NHT, count, indexer.rule["sinks"], alike)
        kv_2NHTd = kv_2NTD.unflatten(-1, (heads, -1)).transpose(2, 3)
        index_2NHKd = kept_NHK[None, ..., None].expand(2, -1, -1, -1, kv_2NHTd.shape[-1])
        kv_2NHKd = kv_2NHTd.gather(3, index_2NHKd)
        if inv_freq is not None:
            kv_2NHKd[0] = rotated(kv_2NHKd[0], inv_freq, count - length)
        held_T = torch.bincount(kept_NHK.flatten(), minlength=length)
        named_K = held_T.argsort(descending=True, stable=True)[:count].sort().values
        return kv_2NHKd.transpose(2, 3).flatten(3), [int(ids[at]) for at in named_K.tolist()]

    return edit


def rotated(key_NHKd: Tensor, inv_freq: Tensor, by: int) -> Tensor:
    """Keys after RoPE, moved by as many positions; dimensions beyond the rotary ones stay."""
    width = 2 * inv_freq.shape[0]
    cos, sin = (by * inv_freq.double()).cos().float(), (by * inv_freq.double()).sin().float()
    a, b, rest = key_NHKd.float().split([width // 2, width // 2, key_NHKd.shape[-1] - width], dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1).to(key_NHKd.dtype)
