"""What an IndexMemCache cannot do, and mistakes with it, are sentences; and a pass that fails leaves nothing behind."""

import pytest
import torch
from generating import generated, padded, plain, read, texts
from press_cases import checkpoint, geometry_of
from tiny_models import random_ids, tiny_model

from indexmem import IndexMemCache
from indexmem.errors import UserError

WRONG = {
    "no budget": ({"method": "keydiff"}, "needs a compression_ratio, such as 0.9"),
    "two budgets": ({"method": "keydiff", "compression_ratio": 0.5, "budget": "9 tokens"}, "needs a compression_ratio"),
    "all evicted": ({"method": "keydiff", "compression_ratio": 1.0}, r"compression_ratio=1.0: .* lies in \[0, 1\)"),
    "a budget in words": ({"method": "keydiff", "budget": "some"}, "budget='some': no budget"),
    "an unknown method": ({"method": "keydif", "compression_ratio": 0.5}, "Did you mean 'keydiff'"),
    "an unknown parameter": (
        {"method": {"name": "snapkv", "params": {"windw": 3}}, "compression_ratio": 0.5},
        "Method 'snapkv.*windw",
    ),
    "no name": ({"method": {"params": {}}, "compression_ratio": 0.5}, "expected a name, such as 'snapkv'"),
    "a pass of its own": (
        {"method": "kvzip", "compression_ratio": 0.5},
        "'kvzip' scores a context by a pass of its own",
    ),
    "no modules": ({"method": "indexmem", "compression_ratio": 0.5}, "Method 'indexmem': needs a trained checkpoint"),
    "no such folder": (
        {"method": "indexer", "modules": "no/such/folder", "compression_ratio": 0.5},
        "neither a checkpoint folder nor a Hub id",
    ),
    "modules of another model": (
        {"method": "indexer", "modules": "testbed-modules", "compression_ratio": 0.5},
        "layers: trained for 6, model has 3",
    ),
}


@pytest.mark.parametrize(("settings", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting(settings, message):
    with pytest.raises(UserError, match=message):
        IndexMemCache(plain(), **settings)


def test_what_is_no_model():
    with pytest.raises(UserError, match="needs a model of transformers, and got a str"):
        IndexMemCache("testbed", "keydiff", 0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 2}, "beam search"),
        ({"prompt_lookup_num_tokens": 2}, "assisted generation"),
        ({"prefill_chunk_size": 16}, "leave out prefill_chunk_size"),
    ],
)
def test_ways_of_generation_that_it_cannot_serve(settings, message):
    model = plain()
    with pytest.raises(UserError, match=message):
        generated(model, IndexMemCache(model, "keydiff", 0.5), padded([random_ids(40) * 2]), **settings)


def test_padding_on_the_right():
    model, ids = plain(), torch.tensor([random_ids(20)] * 2)
    mask = torch.ones_like(ids)
    mask[0, -3:] = 0
    with pytest.raises(UserError, match="padding_side='left'"):
        generated(model, IndexMemCache(model, "keydiff", 0.5), {"input_ids": ids, "attention_mask": mask})


def test_a_row_of_padding_alone():
    model, ids = plain(), torch.tensor([random_ids(20)] * 2)
    with pytest.raises(UserError, match="Row 1 of the batch is padding alone"):
        model(
            ids, attention_mask=torch.tensor([[1] * 20, [0] * 20]), past_key_values=IndexMemCache(model, "knorm", 0.5)
        )


def test_a_context_that_the_method_cannot_rank():
    model = plain()
    with pytest.raises(UserError, match="ranks contexts of 65 tokens or more, and one of this batch has 30"):
        generated(model, IndexMemCache(model, "snapkv", 0.5), padded([random_ids(30)]))


def later(cache, **inputs):
    return lambda: plain()(**inputs, past_key_values=cache)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_ids": torch.ones(3, 2, dtype=torch.long)}, "holds 2 rows, and the model got 3"),
        ({"attention_mask": torch.ones(2, 2)}, r"attention_mask is \(2, 2\), and this pass needs \(2, 62\)"),
        ({"attention_mask": torch.ones(2, 1, 2, 62)}, "needs the attention_mask of the tokenizer"),
        ({"attention_mask": torch.ones(2, 62)}, "shows tokens that were padding"),
        ({"attention_mask": torch.tensor([[0] * 50 + [1] * 12] * 2)}, "hides tokens of the context"),
    ],
)
def test_inputs_that_do_not_go_with_what_was_read(inputs, message):
    model = plain()
    cache = read(model, IndexMemCache(model, "keydiff", 0.5), texts([40, 60]))
    with pytest.raises(UserError, match=message):
        model(**{"input_ids": torch.ones(2, 2, dtype=torch.long)} | inputs, past_key_values=cache)
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():  # nothing has happened to the cache
        model(torch.ones(2, 2, dtype=torch.long), past_key_values=cache)


def test_tokens_that_a_window_holds_cannot_be_hidden():
    model = plain("gemma3_text")
    cache = read(model, IndexMemCache(model, "keydiff", 0.5), texts([40, 40]))
    with torch.no_grad():
        model(torch.ones(2, 3, dtype=torch.long), past_key_values=cache)
        mask = torch.ones(2, 45)
        mask[0, 42] = 0
        with pytest.raises(UserError, match="ask further questions row by row"):
            model(torch.ones(2, 2, dtype=torch.long), attention_mask=mask, past_key_values=cache)


def test_another_model(tmp_path):
    ours, other = plain(), tiny_model("llama", "sdpa", seed=1)
    cache = IndexMemCache(ours, "keydiff", 0.5)
    with pytest.raises(UserError, match="Give an IndexMemCache to the model that it was made for"):
        other(torch.tensor([random_ids(9)]), past_key_values=cache)
    IndexMemCache(other, "keydiff", 0.5)
    with pytest.raises(UserError, match="made for another model"):
        other(torch.tensor([random_ids(9)]), past_key_values=cache)


def test_images_are_refused():
    model = plain("gemma3")
    with pytest.raises(UserError, match="reads text alone"):
        model(
            torch.tensor([random_ids(9)]),
            pixel_values=torch.zeros(1, 3, 28, 28),
            past_key_values=IndexMemCache(model, "keydiff", 0.5),
        )


def test_an_empty_cache_has_no_tokens_to_count():
    cache = IndexMemCache(plain(), "keydiff", 0.5)
    assert (cache.get_seq_length(), cache.kv_bytes, cache.memory_bytes) == (0, 0, 0)
    with pytest.raises(UserError, match="holds nothing yet"):
        _ = cache.held_tokens


def failing(error):
    def hook(module, args, output):
        raise error

    return hook


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("read_before", [False, True])
def test_a_pass_that_does_not_finish(tmp_path, read_before, error):
    """An empty cache is then as empty as before; one that holds something says that it is to be emptied."""
    model, folder = plain(), checkpoint(tmp_path, geometry_of(), "paper")
    cache = IndexMemCache(model, "indexmem", 0.5, modules=folder)
    if read_before:
        read(model, cache, [random_ids(40)])
    handle = model.model.layers[1].register_forward_hook(failing(error))
    try:
        with pytest.raises(error), torch.no_grad():
            model(torch.tensor([random_ids(5)]), past_key_values=cache)
    finally:
        handle.remove()
    with torch.no_grad():
        model(torch.tensor([random_ids(5)]))
    assert model.config._attn_implementation == "sdpa"
    blocks = [layer.self_attn for layer in model.model.layers]
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in blocks)
    if read_before:
        with pytest.raises(UserError, match=r"did not finish\. Empty it with reset"):
            read(model, cache, [random_ids(40)])
        cache.reset()
    fresh = IndexMemCache(model, "indexmem", 0.5, modules=folder)
    assert generated(model, cache, padded([random_ids(40)])) == generated(model, fresh, padded([random_ids(40)]))
