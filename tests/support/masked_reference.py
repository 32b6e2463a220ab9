"""What a model would answer if global layers never saw evicted keys again: transformers' eager attention and a mask.

Independent of our cache and attention: one forward pass over context, question and answer, in which each layer with
full attention gets a mask of its own and the sliding-window layers get transformers'.
"""

import torch
from tiny_models import tiny_model

from indexmem.models.attention import attention_layers

NEVER = 10**9


def gone_after_prefill(kept_HK, length, total):
    """[H, total]: position of the first query that does not see a token any more; evicted context goes at `length`."""
    gone_HT = torch.full((kept_HK.shape[0], total), NEVER)
    gone_HT[:, :length] = length
    return gone_HT.scatter(1, kept_HK, NEVER)


@torch.no_grad()
def masked_logits(family, ids, gone):
    """Logits [T, V] of a forward pass; `gone`: one [H, T] per layer with full attention."""
    model = tiny_model(family, "eager")
    position_T = torch.arange(len(ids))
    causal_TT = position_T[:, None] >= position_T
    handles = []
    for module, gone_HT in zip(attention_layers(model), gone, strict=True):
        seen_HTT = causal_TT & (position_T[:, None] < gone_HT[:, None])
        bias_1QTT = torch.zeros(seen_HTT.shape).masked_fill(~seen_HTT, -torch.inf).repeat_interleave(2, dim=0)[None]

        def with_mask(module, args, kwargs, bias=bias_1QTT):
            return args, kwargs | {"attention_mask": bias}

        handles.append(module.register_forward_pre_hook(with_mask, with_kwargs=True))
    try:
        return model(torch.tensor([ids]), use_cache=False).logits[0]
    finally:
        for handle in handles:
            handle.remove()


def assert_greedy(family, context, question, answer, gone):
    """Each token of the answer is the reference's argmax after those before it."""
    ids = context + question + answer
    logits = masked_logits(family, ids, gone)
    begin = len(context) + len(question) - 1
    assert logits[begin:-1].argmax(-1).tolist() == answer
