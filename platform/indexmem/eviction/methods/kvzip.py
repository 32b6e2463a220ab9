"""KVzip: what a context's reconstruction attends to is worth keeping.

Shapes: H KV heads, g query heads per KV head, Q = H g, L context tokens, n replayed tokens, C tokens of a chunk, T keys
seen, S queries of a block, d head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.eviction.context import ContextCache, Window
from indexmem.eviction.methods.base import EvictionMethod
from indexmem.eviction.methods.params import check_number
from indexmem.eviction.selection import Shared
from indexmem.models.attention import LayerTap, attention_layers
from indexmem.models.backbone import Backbone
from indexmem.models.prompt import PromptFormat, encode
from indexmem.models.sequence_attention import window_mask

REPEAT_ALL = "\n\nRepeat the previous context exactly."
REPEAT_FROM = "\n\nRepeat the part of the previous context exactly, starting with"
LEAD_IN = 8  # tokens before a chunk that tell where it starts
BLOCK_LOGITS = 2**25  # logits held at once: 128 MiB in fp32


class KVzip(EvictionMethod):
    """KVzip (arXiv 2505.23416): replays the context against its own full cache, chunk by chunk.

        score[t] = max over the replayed queries of t's chunk, and the query heads of t's KV head, of
                   softmax(q k_t scaling) over the first `n_sink` tokens, the chunk and the replay itself

    One budget for the heads of all layers; `layerwise` gives every layer the same. What the prompt has before its
    text is not replayed and scores 0, but the first `n_sink` tokens come before all others. The replay costs
    about two more prefills, at positions that follow the context.
    """

    own_pass = True

    def __init__(self, chunk_size: int = 2048, n_sink: int = 4, layerwise: bool = False) -> None:
        """Raises UserError for a chunk without tokens or a negative number of sinks."""
        check_number("chunk_size", chunk_size, least=1, example=2048)
        check_number("n_sink", n_sink, least=0, example=4)
        self.chunk_size, self.n_sink = chunk_size, n_sink
        self.selection = Shared("layer" if layerwise else "model")

    def score(self, tap: LayerTap) -> Tensor:
        raise NotImplementedError("KVzip scores a replay of the context, not the prefill")

    def score_context(
        self, backbone: Backbone, context: ContextCache, context_ids: Sequence[int], prompt: PromptFormat
    ) -> list[Tensor]:
        replay = Replay(backbone, context, self.n_sink)
        for start, ids in self._replays(backbone, list(context_ids), prompt):
            replay.run(ids, start, min(start + self.chunk_size, context.tokens))
        for scores_HL in replay.scores_HL:
            scores_HL[:, : self.n_sink] = float("inf")
        return replay.scores_HL

    def _replays(
        self, backbone: Backbone, context_ids: list[int], prompt: PromptFormat
    ) -> Iterator[tuple[int, list[int]]]:
        """Where each chunk starts, and the prompt that has the model repeat it followed by the chunk itself."""
        first = min(len(encode(backbone.tokenizer, prompt.prefix)), len(context_ids))
        ask_all, ask_from, answer = (encode(backbone.tokenizer, x) for x in (REPEAT_ALL, REPEAT_FROM, prompt.suffix))
        for start in range(first, len(context_ids), self.chunk_size):
            lead_in = context_ids[start - min(LEAD_IN, self.chunk_size) : start]
            question = ask_all if start == first else ask_from + lead_in
            yield start, question + answer + context_ids[start : start + self.chunk_size]


class Replay:
    """Attention of new tokens over a whole context that stays as it is, and the scores read off it on the way."""

    def __init__(self, backbone: Backbone, context: ContextCache, sinks: int) -> None:
        self.backbone, self.context, self.sinks = backbone, context, sinks
        self.scores_HL = [keys.new_zeros(keys.shape[:2], dtype=torch.float32) for keys in context.keys_HLd]
        modules = attention_layers(backbone.model)
        self._number = {int(module.layer_idx): number for number, module in enumerate(modules)}  # type: ignore[arg-type]
        self._windows = {window.layer: window for window in context.windows}
        self._chunk = (0, 0)

    def run(self, ids: Sequence[int], start: int, stop: int) -> None:
        """Read `ids` after the context and score its tokens from `start` to before `stop`."""
        self._chunk = (start, stop)
        device, tokens = self.backbone.device, self.context.tokens
        positions = torch.arange(tokens, tokens + len(ids), device=device)[None]
        decoder = self.backbone.model.get_decoder()
        decoder(torch.tensor([list(ids)], device=device), position_ids=positions, use_cache=False, kv_view=self)

    def attend(self, layer: int, query_BQLd: Tensor, key_BHTd: Tensor, value_BHTd: Tensor, scaling: float) -> Tensor:
        """Attention output [1, n, Q, d] (a `KVView`; batch 1)."""
        query_HgSd = query_BQLd[0].unflatten(0, (key_BHTd.shape[1], -1))
        if layer in self._windows:
            window = self._windows[layer]
            return _side_by_side(_over_window(window, query_HgSd, key_BHTd[0], value_BHTd[0], scaling))
        number = self._number[layer]
        context_HLd = self.context.keys_HLd[number]
        key_HTd = torch.cat((context_HLd, key_BHTd[0]), dim=1)
        value_HTd = torch.cat((self.context.values_HLd[number], value_BHTd[0]), dim=1)
        start, stop = self._chunk
        sinks = min(self.sinks, start)
        scored_HTd = torch.cat((context_HLd[:, :sinks], context_HLd[:, start:stop], key_BHTd[0]), dim=1)
        highest_HC = self.scores_HL[number][:, start:stop]
        outputs = []
        for some_HgSd, seen_Sn in _blocks(query_HgSd, key_HTd.shape[1]):
            seen_ST = F.pad(seen_Sn, (self.context.tokens, 0), value=True)
            outputs.append(_attend(some_HgSd, key_HTd, value_HTd, seen_ST, scaling))
            attention_HgST = _attention(some_HgSd, scored_HTd, seen_Sn, scaling)
            on_chunk_HC = attention_HgST[..., sinks : sinks + stop - start].amax(dim=(1, 2))
            torch.maximum(highest_HC, on_chunk_HC, out=highest_HC)
        return _side_by_side(torch.cat(outputs, dim=2))


def _blocks(query_HgSd: Tensor, keys: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Some queries at a time, with which of the n replayed tokens each of them sees [S, n]."""
    heads, group, new, _ = query_HgSd.shape
    seen_nn = torch.ones(new, new, dtype=torch.bool, device=query_HgSd.device).tril()
    block = max(1, BLOCK_LOGITS // (heads * group * keys))
    yield from zip(query_HgSd.split(block, dim=2), seen_nn.split(block))


def _attend(query_HgSd: Tensor, key_HTd: Tensor, value_HTd: Tensor, seen_ST: Tensor, scaling: float) -> Tensor:
    """Attention [H, g, S, d] to the keys that each query sees."""
    group = query_HgSd.shape[1]
    output_HsTd = F.scaled_dot_product_attention(
        query_HgSd.flatten(1, 2)[None],
        key_HTd[None],
        value_HTd[None],
        attn_mask=seen_ST.repeat(group, 1),
        scale=scaling,
    )[0]
    return output_HsTd.unflatten(1, (group, -1))


def _attention(query_HgSd: Tensor, key_HTd: Tensor, seen_Sn: Tensor, scaling: float) -> Tensor:
    """softmax(q k scaling) [H, g, S, T] in fp32 over keys whose last n are the replayed tokens."""
    logits_HgST = (query_HgSd @ key_HTd[:, None].transpose(-1, -2)).float() * scaling
    logits_HgST[..., -seen_Sn.shape[1] :].masked_fill_(~seen_Sn, float("-inf"))
    return logits_HgST.softmax(dim=-1)


def _over_window(window: Window, query_HgSd: Tensor, key_HTd: Tensor, value_HTd: Tensor, scaling: float) -> Tensor:
    """Attention [H, g, n, d] in a sliding-window layer, over what it holds of the context and the new tokens."""
    held, new = window.keys_HWd.shape[1], key_HTd.shape[1]
    position_T = torch.arange(-held, new, device=key_HTd.device)  # the first new token at 0
    keys, values = torch.cat((window.keys_HWd, key_HTd), dim=1), torch.cat((window.values_HWd, value_HTd), dim=1)
    return _attend(query_HgSd, keys, values, window_mask(position_T[held:], position_T, window.size), scaling)


def _side_by_side(output_HgSd: Tensor) -> Tensor:
    """As attention modules take it, [1, S, Q, d]."""
    return output_HgSd.flatten(0, 1).transpose(0, 1)[None]
