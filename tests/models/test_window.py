"""Models whose layers partly attend within a sliding window: the attention itself, the geometry, what is tapped."""

import pytest
import torch
from dense_reference import dense_attention
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import FULL_LAYERS, SLIDING_FAMILIES, SLIDING_LAYERS, WINDOW, random_ids, tiny_config, tiny_model

from indexmem.errors import UserError
from indexmem.models.attention import attention_layers, rotary_of, tapping
from indexmem.models.geometry import Geometry
from indexmem.models.sequence_attention import attend_in_window


@given(length=st.integers(1, 40), window=st.integers(1, 45), block=st.integers(1, 16), seed=st.integers(0, 99))
def test_window_attention_equals_the_dense_reference(length, window, block, seed):
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, heads, length, 4, generator=generator) for heads in (6, 2, 2))
    mask = torch.tensor([[s - window < t <= s for t in range(length)] for s in range(length)])
    got = attend_in_window(query, key, value, window, 0.7, block)
    assert got.shape == (2, length, 6, 4)
    for row in range(2):
        expected = dense_attention(query[row], key[row], value[row], mask, 0.7)
        torch.testing.assert_close(got[row].transpose(0, 1).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("length", [WINDOW - 4, WINDOW, WINDOW + 1, 100])
def test_logits_equal_plain_attention_inside_and_beyond_the_window(family, length):
    """In batches with right padding, as training runs it."""
    ids = torch.tensor([random_ids(length), random_ids(length - 7, seed=1) + [0] * 7])
    with torch.no_grad():
        ours, eager = (tiny_model(family, name)(ids, use_cache=False).logits for name in ("indexmem", "eager"))
    torch.testing.assert_close(ours, eager, atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_taps_number_the_layers_with_full_attention(family):
    model, taps, seen = tiny_model(family), [], {}
    with (
        torch.no_grad(),
        tapping(model, taps.append, lambda layer, key, value: seen.update({layer: (key, value)})) as kw,
    ):
        model(torch.tensor([random_ids(40)]), use_cache=False, **kw)
    assert [tap.layer for tap in taps] == [0, 1, 2]
    assert [tap.module.layer_idx for tap in taps] == list(FULL_LAYERS)
    assert [tap.module for tap in taps] == attention_layers(model)
    assert tuple(seen) == SLIDING_LAYERS
    assert {tensor.shape for pair in seen.values() for tensor in pair} == {(1, 2, 40, 16)}


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_rotary_tables_are_those_of_the_layers_with_full_attention(family):
    model, taps = tiny_model(family), []
    with torch.no_grad(), tapping(model, taps.append) as kwargs:
        model(torch.tensor([random_ids(40)]), use_cache=False, **kwargs)
    positions = torch.arange(40)[None]
    cos, sin = rotary_of(model)(taps[0].hidden_BLD, positions)
    local_cos, _ = model.get_decoder().rotary_emb(taps[0].hidden_BLD, positions, "sliding_attention")
    for tap in taps:
        assert torch.equal(tap.cos_BLr, cos) and torch.equal(tap.sin_BLr, sin)
        assert torch.equal(tap.rotary(tap.hidden_BLD, positions)[0], cos)
        assert not torch.allclose(tap.cos_BLr, local_cos, atol=1e-2)


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
def test_geometry_counts_layers_with_full_attention_and_bytes_of_all(family):
    geometry = Geometry.of(tiny_config(family))
    assert (geometry.layers, geometry.sliding_layers, geometry.window) == (3, 4, WINDOW)
    assert geometry.scaling == 20**-0.5
    token = 2 * 2 * 16 * 4  # K and V, two heads, fp32
    assert geometry.kv_bytes(10, 4) == 7 * 10 * token
    assert geometry.kv_bytes(100, 4) == (3 * 100 + 4 * (WINDOW - 1)) * token
    assert geometry.window_bytes(100, 4) == 4 * (WINDOW - 1) * token


def test_any_family_with_layer_types_and_windows_that_nothing_can_leave():
    mixed = tiny_config("qwen3", use_sliding_window=True, sliding_window=16, max_window_layers=1)
    geometry = Geometry.of(mixed)
    assert (geometry.layers, geometry.sliding_layers, geometry.window) == (1, 2, 16)
    wide = Geometry.of(tiny_config("mistral", sliding_window=1024))
    assert (wide.layers, wide.sliding_layers, wide.window) == (3, 0, None)
    assert wide.kv_bytes(10, 4) == Geometry.of(tiny_config("mistral")).kv_bytes(10, 4)


def test_models_without_anything_to_evict_are_refused():
    with pytest.raises(UserError, match="Every layer of this model has a sliding window of 128 tokens"):
        Geometry.of(tiny_config("mistral", sliding_window=128))
    with pytest.raises(UserError, match="kind chunked_attention are not supported"):
        Geometry.of(tiny_config("qwen3", layer_types=["full_attention", "chunked_attention", "full_attention"]))
    with pytest.raises(UserError, match="both directions"):
        Geometry.of(tiny_config("gemma3_text", use_bidirectional_attention=True))
