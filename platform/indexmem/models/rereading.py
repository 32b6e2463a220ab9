"""Documents that a backbone reads twice in one pass: what a repetition attends to is what a text is later asked for.

The row [1, N] holds each document once, then each again chunk by chunk, as KVzip replays a context: a chunk follows the
whole of its document and sees that and itself, no other chunk. Before it stand a request, if there is one, and, but for
a document's first chunk, the few tokens that lead up to it. Attention over a document is one call for all its chunks
and attention of a chunk to itself another; by their log-sum-exp they are one softmax. Nothing is L x L in memory, and
no layer waits for a cache of all layers.

Shapes: D documents of up to L tokens, R chunks with up to W tokens read, Q query heads, H KV heads, d head_dim, T keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from indexmem.models.packed import PackedDocuments
from indexmem.models.sequence_attention import attend_in_blocks, attend_with_lse, window_mask

LEAD_IN_TOKENS = 8  # tokens before a chunk that tell where it starts, as in KVzip

States = tuple[Tensor, Tensor, Tensor]  # query, key, value


def most_read_again(length: int, request: int, chunk: int) -> int:
    """Positions after a document of up to `length` tokens that its second reading takes at most."""
    return request + (LEAD_IN_TOKENS + chunk if chunk < length else length)


@dataclass(frozen=True)
class Chunk:
    """Tokens `start` to before `stop` of a document, read again after `before` other tokens."""

    document: int
    start: int
    stop: int
    before: int

    @property
    def tokens(self) -> int:
        return self.before + self.stop - self.start


@dataclass(frozen=True)
class Reread:
    """What a layer sees of the second reading; entries beyond a chunk's own tokens mean nothing."""

    chunks: Sequence[Chunk]
    query_RQWd: Tensor  # after RoPE
    key_RHWd: Tensor
    value_RHWd: Tensor
    lse_RQW: Tensor  # of all that a query attends to, fp32 or wider
    cos_RWr: Tensor  # rotary tables
    sin_RWr: Tensor
    spans_R4: Tensor  # `Readings.spans_R4`


@dataclass(frozen=True)
class Readings:
    """Where both readings lie in the row."""

    lengths: Sequence[int]  # of the documents
    first: PackedDocuments
    chunks: Sequence[Chunk]  # in the order of the documents
    second: PackedDocuments  # the chunks with what stands before them
    spans_R4: Tensor  # int32, each chunk's document, start, stop and tokens: `chunks` where kernels can read them
    source_N: Tensor  # each of the row's tokens in (documents one after another, request)
    positions_1N: Tensor

    @classmethod
    def of(cls, lengths_D: Tensor, request: int, chunk: int) -> Readings:
        """Documents of these lengths, a request of so many tokens, up to `chunk` tokens read again at a time."""
        device, lengths = lengths_D.device, lengths_D.tolist()
        chunks, again, positions = [], [], []
        begin, total = 0, sum(lengths)
        for document, length in enumerate(lengths):
            for start in range(0, length, chunk):
                lead_in = min(LEAD_IN_TOKENS, start)
                part = Chunk(document, start, min(start + chunk, length), request + lead_in)
                chunks.append(part)
                again += [torch.arange(total, total + request), torch.arange(start - lead_in, part.stop) + begin]
                positions.append(torch.arange(length, length + part.tokens))
            begin += length
        first = PackedDocuments.of(lengths_D)
        spans = [(part.document, part.start, part.stop, part.tokens) for part in chunks]
        spans_R4 = torch.tensor(spans, dtype=torch.int32, device=device)
        second = PackedDocuments.of(spans_R4[:, 3].long())
        source_N = torch.cat((torch.arange(total), *again)).to(device)
        positions_1N = torch.cat((first.position_ids[0], torch.cat(positions).to(device)))[None]
        return cls(lengths, first, chunks, second, spans_R4, source_N, positions_1N)

    def row(self, documents_1N: Tensor, request: Sequence[int]) -> Tensor:
        """Ids of the row [1, N], from the documents one after another and the request."""
        asked = torch.tensor(list(request), dtype=documents_1N.dtype, device=documents_1N.device)
        return torch.cat((documents_1N[0], asked))[self.source_N][None]

    def split_first(self, row: Tensor, dim: int = 1) -> Tensor:
        """Row [1, ..., N, ...] -> the documents as they were read first, [D, ..., L, ...]."""
        return self.first.split(row.narrow(dim, 0, sum(self.lengths)), dim)

    def split_second(self, row: Tensor, dim: int = 1) -> Tensor:
        """Row [1, ..., N, ...] -> the chunks as they were read again, [R, ..., W, ...]."""
        documents = sum(self.lengths)
        return self.second.split(row.narrow(dim, documents, row.shape[dim] - documents), dim)

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """[D, L, ...] and [R, W, ...] -> row [1, N, ...]."""
        return torch.cat((self.first.join(first), self.second.join(second)), dim=1)

    def reread(self, second: States, first: States, scaling: float) -> tuple[Tensor, Tensor]:
        """Full attention of the second reading, from both readings' states: output [R, W, Q, d], lse [R, Q, W]."""
        own_RWQd, own_RQW = _attend(*second, scaling, causal=True)
        context = [self._over_documents(second[0], first, begin, end, scaling) for begin, end in self._alike]
        context_RWQd, context_RQW = (torch.cat(parts) for parts in zip(*context))
        lse_RQW = torch.logaddexp(own_RQW, context_RQW)
        output_RWQd = _weighted(own_RWQd, own_RQW - lse_RQW) + _weighted(context_RWQd, context_RQW - lse_RQW)
        return output_RWQd, lse_RQW

    def attend_within(self, window: int, second: States, first: States, scaling: float) -> Tensor:
        """Sliding-window attention of the second reading, [R, W, Q, d]; `window` counts a query's own token."""
        outputs = []
        for part, query_QWd, key_HWd, value_HWd in zip(self.chunks, *second):
            length = self.lengths[part.document]
            begin = max(0, length - window + 1)
            key_HTd, value_HTd = (
                torch.cat((old[part.document, :, begin:length], new), dim=1)
                for old, new in ((first[1], key_HWd), (first[2], value_HWd))
            )
            position_T = torch.arange(begin, begin + key_HTd.shape[1], device=key_HTd.device)
            mask_WT = window_mask(position_T[length - begin :], position_T, window)
            attended = F.scaled_dot_product_attention(
                query_QWd[None], key_HTd[None], value_HTd[None], attn_mask=mask_WT, scale=scaling, enable_gqa=True
            )
            outputs.append(attended[0].transpose(0, 1))
        return torch.stack(outputs)

    @cached_property
    def _alike(self) -> list[tuple[int, int]]:
        """Runs of documents of one length, begin and end; all layers have these."""
        runs, begin = [], 0
        for _, same in groupby(self.lengths):
            end = begin + len(list(same))
            runs.append((begin, end))
            begin = end
        return runs

    def _over_documents(
        self, query_RQWd: Tensor, first: States, begin: int, end: int, scaling: float
    ) -> tuple[Tensor, Tensor]:
        """What the chunks of the documents from `begin` to before `end` attend to in these, all of one length."""
        rows = [row for row, part in enumerate(self.chunks) if begin <= part.document < end]
        query_DrQWd = query_RQWd[rows[0] : rows[-1] + 1].unflatten(0, (end - begin, -1))
        parts, width = query_DrQWd.shape[1], query_DrQWd.shape[3]
        query_DQsd = query_DrQWd.transpose(1, 2).flatten(2, 3)
        key_DHTd, value_DHTd = (states[begin:end, :, : self.lengths[begin]] for states in first[1:])
        output_DsQd, lse_DQs = _attend(query_DQsd, key_DHTd, value_DHTd, scaling, causal=False)
        lse_DQrW = lse_DQs.unflatten(2, (parts, width))
        return output_DsQd.unflatten(1, (parts, width)).flatten(0, 1), lse_DQrW.transpose(1, 2).flatten(0, 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool) -> tuple[Tensor, Tensor]:
    found = attend_with_lse(query, key, value, scaling, causal)
    return attend_in_blocks(query, key, value, scaling, causal) if found is None else found


def _weighted(output_RWQd: Tensor, log_weight_RQW: Tensor) -> Tensor:
    return output_RWQd * log_weight_RQW.exp().transpose(1, 2)[..., None].to(output_RWQd.dtype)
