"""Lanes in buckets: every lane once, little padding, and attention as if each lane lay alone."""

import pytest
import torch
from dense_reference import dense_attention
from hypothesis import given, settings
from hypothesis import strategies as st

from indexmem.engine.cache import RaggedCache
from indexmem.engine.lanes import ALIGN, CALL_BYTES, LaneLayout
from indexmem.eviction.context import RowCache

CPU = torch.device("cpu")
COLUMN = CALL_BYTES["cpu"] // 500  # bytes: 500 columns of padding cost as much as another call


@st.composite
def batches(draw):
    """Lengths [R, H] and which rows have a memory."""
    rows, heads = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    length = st.integers(0, 700)
    uniform = draw(st.booleans())
    lengths = [[draw(length)] * heads if uniform else [draw(length) for _ in range(heads)] for _ in range(rows)]
    return lengths, [draw(st.booleans()) for _ in range(rows)]


@given(batches())
def test_every_lane_is_in_one_bucket_that_suits_it(batch):
    lengths, remembers = batch
    layout = LaneLayout.of(lengths, remembers, COLUMN, CPU)
    heads, flat = len(lengths[0]), [length for row in lengths for length in row]
    assert sorted(layout.lane_N) == list(range(len(flat)))
    assert [b.begin for b in layout.buckets] == [0, *(b.end for b in layout.buckets)][:-1]
    assert layout.buckets[-1].end == len(flat)
    for bucket in layout.buckets:
        for lane in layout.lane_N[bucket.span]:
            assert remembers[lane // heads] == bucket.remembers
            assert flat[lane] <= bucket.width
        lanes = [flat[lane] for lane in layout.lane_N[bucket.span]]
        assert bucket.width - max(lanes) < ALIGN
        assert sum(max(lanes) - length for length in lanes) <= CALL_BYTES["cpu"] // COLUMN
    by_lane = torch.arange(len(flat))
    assert layout.into_lanes(layout.into_buckets(by_lane)).tolist() == by_lane.tolist()
    assert layout.into_buckets(by_lane).tolist() == list(layout.lane_N)


@given(batches(), st.data())
def test_selecting_rows_keeps_their_lanes_where_they_were(batch, data):
    lengths, remembers = batch
    rows = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True).map(sorted))
    layout = LaneLayout.of(lengths, remembers, COLUMN, CPU)
    chosen, origins = layout.select(rows)
    heads = len(lengths[0])
    assert sorted(chosen.lane_N) == list(range(len(rows) * heads))
    for bucket, (number, indices) in zip(chosen.buckets, origins, strict=True):
        old = layout.buckets[number]
        assert (bucket.width, bucket.remembers) == (old.width, old.remembers)
        for lane, index in zip(chosen.lane_N[bucket.span], indices.tolist(), strict=True):
            row, head = divmod(lane, heads)
            assert layout.lane_N[old.begin + index] == rows[row] * heads + head


def test_sorted_rows_need_no_reordering():
    layout = LaneLayout.of([[900, 900], [500, 500], [480, 480], [20, 20]], [False] * 4, COLUMN, CPU)
    assert layout.lane_N == tuple(range(8))
    assert [(b.end - b.begin, b.width) for b in layout.buckets] == [(2, 904), (4, 504), (2, 24)]


def ragged_row(context: int, heads: int, generator: torch.Generator) -> RowCache:
    """Random K and V [H, L, 4], of which each head keeps its own number of tokens."""
    keys, values = (torch.randn(heads, context, 4, generator=generator) for _ in range(2))
    counts = torch.randint(1, context, (heads,), generator=generator)
    kept = []
    for count in counts.tolist():
        own = torch.randperm(context, generator=generator)[:count].sort().values
        kept.append(torch.cat((own, own[-1:].expand(int(counts.max()) - count))))
    return RowCache([keys], [values], [torch.stack(kept)], counts_H=[counts])


@pytest.mark.parametrize("seed", range(8))
def test_attention_of_ragged_heads_equals_a_dense_reference_also_after_rows_left(seed):
    generator = torch.Generator().manual_seed(seed)
    rows = [ragged_row(context, 2, generator) for context in (300, 40, 180, 9)]
    cache = RaggedCache(rows, room=5)
    written: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    present = [0, 1, 2, 3]
    for step, new in enumerate((3, 1, 1)):
        if step == 2:
            present = [0, 2, 3]
            cache.select(torch.tensor(present))
            written = [tuple(x[present] for x in item) for item in written]
        valid = torch.ones(len(present), new, dtype=torch.bool)
        if step == 0:
            valid[1, :2] = False
        keys, values = (torch.randn(len(present), 2, new, 4, generator=generator) for _ in range(2))
        query = torch.randn(len(present), 6, new, 4, generator=generator)
        written.append((keys, values, valid))
        cache.extend(valid)
        cache.update(keys, values, 0)
        output = cache.attend(0, query, keys, values, 0.5).transpose(1, 2)
        for r, row in enumerate(present):
            for head in range(2):
                count = int(rows[row].counts_H[0][head])
                index = rows[row].kept_HK[0][head][:count]
                tokens = [(rows[row].keys_HLd[0][head][index], rows[row].values_HLd[0][head][index])]
                tokens += [(k[r, head][v[r]], u[r, head][v[r]]) for k, u, v in written]
                key, value = (torch.cat(part)[None] for part in zip(*tokens))
                seen = int(valid[r].sum())
                mask = torch.ones(seen, key.shape[1], dtype=torch.bool).tril(key.shape[1] - seen)
                own = query[r, 3 * head : 3 * head + 3][:, valid[r]]
                expected = dense_attention(own, key, value, mask, 0.5)
                torch.testing.assert_close(
                    output[r, 3 * head : 3 * head + 3][:, valid[r]].double(), expected, atol=1e-5, rtol=1e-5
                )
    assert cache.lengths().tolist()[0] == [
        int(rows[row].counts_H[0][head]) + sum(int(v[r].sum()) for _, _, v in written)
        for r, row in enumerate(present)
        for head in range(2)
    ]


@settings(max_examples=20)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_repacking_keeps_what_is_chosen(lengths):
    generator = torch.Generator().manual_seed(0)
    rows = []
    for length in lengths:
        keys, values = (torch.randn(2, 400, 4, generator=generator) for _ in range(2))
        rows.append(RowCache([keys], [values], [torch.arange(length).expand(2, length)]))
    cache = RaggedCache(rows, room=3)
    cache.extend(torch.ones(len(rows), 2, dtype=torch.bool))
    new = torch.randn(len(rows), 2, 2, 4, generator=generator)
    cache.update(new, new, 0)
    seen: dict[int, torch.Tensor] = {}

    def newest_half(row, layer, key_HTd, value_HTd):
        seen[row] = key_HTd
        tokens = key_HTd.shape[1]
        return torch.arange(tokens // 2, tokens).expand(2, -1), [tokens - tokens // 2] * 2

    cache.repack(newest_half)
    for row, length in enumerate(lengths):
        assert torch.equal(seen[row], torch.cat((rows[row].keys_HLd[0][:, :length], new[row]), 1))
    again: dict[int, torch.Tensor] = {}
    cache.repack(
        lambda row, layer, k, v: again.update({row: k}) or (torch.arange(k.shape[1]).expand(2, -1), [k.shape[1]] * 2)
    )
    for row, length in enumerate(lengths):
        assert torch.equal(again[row], seen[row][:, (length + 2) // 2 :])
