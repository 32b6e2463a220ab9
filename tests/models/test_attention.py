"""Taps see what attention sees, and leave the model as it was."""

import pytest
import torch
from kvpress.utils import get_prerope_key_states, get_prerope_query_states
from tiny_models import FAMILIES, random_ids, tiny_config, tiny_model
from transformers import GPT2Config

from indexmem.errors import UserError
from indexmem.models.attention import attention_layers, tapping
from indexmem.models.geometry import Geometry
from indexmem.models.projection import unrotate


def taps_of(model, ids):
    taps = []
    with torch.no_grad(), tapping(model, taps.append) as kwargs:
        output = model(ids, use_cache=False, **kwargs)
    return taps, output.logits


@pytest.mark.parametrize("family", FAMILIES)
def test_tapped_forward_equals_plain_sdpa(family):
    ids = torch.tensor([random_ids(40)])
    taps, logits = taps_of(tiny_model(family), ids)
    with torch.no_grad():
        plain = tiny_model(family, "sdpa")(ids, use_cache=False).logits
    torch.testing.assert_close(logits, plain, atol=0, rtol=0)
    assert [tap.layer for tap in taps] == [0, 1, 2]


@pytest.mark.parametrize("family", FAMILIES)
def test_pre_rope_states_equal_projections(family):
    """The oracle is kvpress' per-family projection code."""
    taps, _ = taps_of(tiny_model(family), torch.tensor([random_ids(40)]))
    for tap in taps:
        expected_q = get_prerope_query_states(tap.module, tap.hidden_BLD)
        torch.testing.assert_close(tap.query_pre_BQLd, expected_q, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            tap.key_pre_BHLd, get_prerope_key_states(tap.module, tap.hidden_BLD), atol=1e-4, rtol=1e-4
        )


def test_unrotate_handles_scaled_and_partial_rotary():
    torch.manual_seed(0)
    x, angle = torch.randn(2, 3, 5, 12), torch.rand(2, 5, 4)
    cos, sin = (1.7 * torch.cat((f(angle), f(angle)), -1) for f in (torch.cos, torch.sin))
    first, second = x[..., :8].chunk(2, -1)
    rotated = x[..., :8] * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]
    torch.testing.assert_close(unrotate(torch.cat((rotated, x[..., 8:]), -1), cos, sin), x, atol=1e-5, rtol=1e-5)


def test_hooks_are_gone_after_an_error():
    model = tiny_model("llama")

    def fail(tap):
        raise RuntimeError("visitor failed")

    with pytest.raises(RuntimeError, match="visitor failed"), tapping(model, fail) as kwargs:
        model(torch.tensor([random_ids(8)]), use_cache=False, **kwargs)
    assert all(not layer._forward_pre_hooks for layer in attention_layers(model))


def test_geometry_reads_configs_and_refuses_what_it_cannot_handle():
    geometry = Geometry.of(tiny_config("llama"))
    assert (geometry.layers, geometry.group, geometry.attention_width, geometry.hidden_size) == (3, 2, 64, 48)
    assert geometry.kv_bytes(10, 4) == 2 * 3 * 2 * 16 * 10 * 4
    with pytest.raises(UserError, match=r"'gpt2' is not supported. Supported: llama"):
        Geometry.of(GPT2Config())
