"""Attention that gives its log-sum-exp away, and the layer that then does not attend a second time."""

import math

import pytest
import torch
from tiny_models import tiny_config
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from indexmem.models import attention
from indexmem.models import sequence_attention as lse
from indexmem.models.attention import ATTENTION_NAME, register_attention, tapping
from indexmem.models.projection import unrotate
from indexmem.models.sequence_attention import attend_with_lse


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dim", [16, 128])
def test_output_and_log_sum_exp_are_those_of_causal_attention(device, dim):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    query, key, value = (torch.randn(2, 70, heads, dim, device=device).to(dtype).transpose(1, 2) for heads in (4, 2, 2))
    found = attend_with_lse(query, key, value, 0.3)
    assert found is not None
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3, enable_gqa=True)
    rounding = {} if device == "cpu" else {"atol": 1e-3, "rtol": 1.6e-2}  # another kernel of bf16 than sdpa took
    torch.testing.assert_close(found[0], expected.transpose(1, 2), **rounding)
    logits = 0.3 * query.double() @ key.double().repeat_interleave(2, 1).transpose(-1, -2)
    exact = logits.masked_fill(torch.ones(70, 70, device=device).triu(1).bool(), -torch.inf).logsumexp(-1)
    assert found[1].dtype == torch.float32
    torch.testing.assert_close(found[1].double(), exact, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("wrong", ["another base", "no such function"])
def test_a_log_sum_exp_of_another_kind_is_not_used(monkeypatch, wrong):
    plain = lse._attend

    def attend(*args):
        if wrong == "no such function":
            raise RuntimeError("no kernel image")
        output, sums = plain(*args)
        return output, sums / math.log(2)

    monkeypatch.setattr(lse, "_attend", attend)
    lse._as_expected.cache_clear()
    states = (torch.randn(1, 2, 9, 24) for _ in range(3))
    try:
        with pytest.warns(UserWarning, match="computed a second time"):
            assert attend_with_lse(*states, 0.2) is None
    finally:
        lse._as_expected.cache_clear()


def test_a_layer_goes_on_with_the_output_that_its_visitor_asked_for(monkeypatch):
    register_attention()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config("llama"), attn_implementation=ATTENTION_NAME).eval()
    ids = torch.randint(0, 50, (2, 20))
    attended = []
    plain = attention.sdpa_attention_forward
    monkeypatch.setattr(attention, "sdpa_attention_forward", lambda *args: attended.append(args) or plain(*args))

    @torch.no_grad()
    def run(visit) -> torch.Tensor:
        with tapping(model, visit) as kwargs:
            return model(ids, use_cache=False, **kwargs).logits

    expected = run(lambda tap: None)
    assert len(attended) == model.config.num_hidden_layers
    torch.testing.assert_close(run(lambda tap: tap.attended), expected)
    assert len(attended) == model.config.num_hidden_layers, "no layer attended twice"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_is_undone(dtype):
    torch.manual_seed(0)
    x, angle = torch.randn(2, 25, 3, 8, dtype=dtype).transpose(1, 2), torch.rand(1, 25, 3).repeat(1, 1, 2)
    whole = unrotate(x, 2 * angle.cos(), 2 * angle.sin())  # some long-context variants scale both
    assert (
        whole.dtype == torch.float32
        and whole.stride() == x.stride()
        and torch.equal(whole[..., 6:], x[..., 6:].float())
    )
    first, second = whole[..., :3], whole[..., 3:6]
    cos, sin = 2 * angle.cos()[:, None, :, :3], 2 * angle.sin()[:, None, :, :3]
    again = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    torch.testing.assert_close(again, x[..., :6].float())
