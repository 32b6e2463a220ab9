"""A packed row: each document sees itself alone, in every family, and comes out of it as it went in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import FAMILIES, WINDOW, random_ids, tiny_model

from indexmem.models.attention import tapping
from indexmem.models.packed import PackedDocuments

LENGTHS = (40, 7, 1, 2 * WINDOW + 3, 33)
ROW_STATES = {"hidden_BLD": 0, "cos_BLr": 0, "sin_BLr": 0, "query_BQLd": 1, "key_BHLd": 1, "value_BHLd": 1}
ROW_STATES |= {"query_pre_BQLd": 1, "key_pre_BHLd": 1}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 2))
def test_split_and_join_are_inverse(lengths, axes_before):
    packed = PackedDocuments.of(torch.tensor(lengths))
    row = torch.randn(1, *(2, 3)[:axes_before], sum(lengths), 4)
    batch = packed.split(row, dim=1 + axes_before)
    for document, length in enumerate(lengths):
        start = sum(lengths[:document])
        alone = row.narrow(1 + axes_before, start, length)[0]
        assert torch.equal(batch[document].narrow(axes_before, 0, length), alone)
    assert torch.equal(packed.join(batch.movedim(1 + axes_before, 1)), row.movedim(1 + axes_before, 1))
    assert packed.position_ids[0].tolist() == [position for length in lengths for position in range(length)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_document_is_what_it_is_alone(family):
    model, documents = tiny_model(family), [random_ids(length, seed=n) for n, length in enumerate(LENGTHS)]
    packed = PackedDocuments.of(torch.tensor(LENGTHS))
    taps = []
    with torch.no_grad(), tapping(model, taps.append, documents=packed) as kwargs:
        ids_1N = torch.tensor([[token for ids in documents for token in ids]])
        row = model.get_decoder()(ids_1N, use_cache=False, **kwargs).last_hidden_state
    for number, ids in enumerate(documents):
        alone = []
        with torch.no_grad(), tapping(model, alone.append) as kwargs:
            expected = model.get_decoder()(torch.tensor([ids]), use_cache=False, **kwargs).last_hidden_state
        start = sum(LENGTHS[:number])
        torch.testing.assert_close(row[:, start : start + len(ids)], expected, atol=2e-5, rtol=1e-5)
        assert len(alone) == len(taps) == 3
        for tap, its in zip(taps, alone):
            for name, axis in ROW_STATES.items():
                found = getattr(tap, name)[number].narrow(axis, 0, len(ids))
                torch.testing.assert_close(found, getattr(its, name)[0], atol=2e-5, rtol=1e-5, msg=name)
    assert all(getattr(tap, name).isfinite().all() for tap in taps for name in ROW_STATES), "padding too"
