"""A press with memory acts on the caches that it filled and leaves everything else as it was."""

import copy

import pytest
import torch
from kvpress import KnormPress, PyramidKVPress
from press_cases import (
    LENGTH,
    checkpoint,
    empty,
    filled,
    geometry_of,
    hooks_of,
    noisy,
    plain,
    question_logits,
)
from tiny_models import random_ids
from transformers import DynamicCache, QuantizedCache

from indexmem.errors import UserError
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.press import IndexerPress, IndexMemPress, MemoryPress


@pytest.fixture
def memory_press(tmp_path):
    """An IndexMemPress for the tiny Llama; its hooks are gone after the test."""
    press = IndexMemPress.from_pretrained(checkpoint(tmp_path, geometry_of()), compression_ratio=0.7)
    yield press
    press.detach()


def test_other_caches_are_untouched_while_hooks_are_registered(memory_press):
    model = plain()
    expected = question_logits(model, filled(model, None, seed=3))
    own = filled(model, memory_press)
    assert hooks_of(model) == len(model.model.layers)
    assert torch.equal(question_logits(model, filled(model, None, seed=3)), expected)
    once = question_logits(model, copy.deepcopy(own))
    assert torch.equal(question_logits(model, copy.deepcopy(own)), once), "reading changes no state"


def test_a_cache_filled_anew_forgets(memory_press):
    model = plain()
    cache = filled(model, memory_press)
    empty(cache)
    with torch.no_grad():
        model.model(torch.tensor([random_ids(LENGTH, 3)]), past_key_values=cache)
    assert torch.equal(question_logits(model, cache), question_logits(model, filled(model, None, seed=3)))


def test_presses_on_one_model_read_and_write_only_their_own(memory_press, tmp_path):
    alone = question_logits(plain(), filled(plain(), memory_press))
    other = IndexMemPress.from_pretrained(tmp_path, compression_ratio=0.7)
    noisy(other.memories)
    others_alone = question_logits(plain(), filled(plain(), other))
    own, taken_over = filled(plain(), memory_press), filled(plain(), memory_press)
    assert torch.equal(question_logits(plain(), own), alone), "the other's hooks came last, and do not answer"
    empty(taken_over)
    with torch.no_grad(), other(plain()):
        plain().model(torch.tensor([random_ids(LENGTH)]), past_key_values=taken_over)
    assert torch.equal(question_logits(plain(), taken_over), others_alone)
    other.detach()
    assert not torch.allclose(others_alone, alone)


def test_decoding_inside_the_context_is_the_same(memory_press):
    outside = question_logits(plain(), filled(plain(), memory_press))
    cache = filled(plain(), memory_press)
    with memory_press(plain()):
        assert torch.equal(question_logits(plain(), cache), outside)


def test_hooks_are_registered_once_and_gone_after_detach(memory_press):
    model = plain()
    before = hooks_of(model)
    for _ in range(2):
        cache = filled(model, memory_press)
    assert hooks_of(model) == before + len(model.model.layers)
    for _ in range(2):
        memory_press.detach()
    assert hooks_of(model) == before
    forgetful = question_logits(model, filled(model, memory_press.press))
    assert torch.equal(question_logits(model, cache), forgetful)


def test_a_batch_of_contexts_gives_what_each_gives_alone(memory_press):
    model = plain()
    alone = torch.cat([question_logits(model, filled(model, memory_press, seed)) for seed in (0, 1)])
    cache, ids = DynamicCache(), torch.tensor([random_ids(LENGTH, 0), random_ids(LENGTH, 1)])
    with torch.no_grad(), memory_press(model):
        model.model(ids, past_key_values=cache)
    with torch.no_grad():
        question = torch.tensor([random_ids(7, 9)] * 2)[:, :6]
        positions = torch.arange(LENGTH, LENGTH + 6).expand(2, -1)
        together = model(question, past_key_values=cache, position_ids=positions).logits
    torch.testing.assert_close(together, alone[:, :6], rtol=1e-3, atol=1e-3)


def test_a_foreign_memory_is_refused(tmp_path):
    folder = checkpoint(tmp_path, geometry_of(num_key_value_heads=4))
    press = MemoryPress(press=KnormPress(compression_ratio=0.5), memories=MemoryStack.load_for("indexer", folder))
    with pytest.raises(UserError, match="kv_heads: trained for 4, model has 2"), press(plain()):
        pass


def test_mistakes_are_named(tmp_path, memory_press):
    with pytest.raises(UserError, match="neither a checkpoint folder nor a Hub id"):
        IndexerPress.from_pretrained(tmp_path / "nowhere" / "at" / "all")
    alone = memory_press.press.save_pretrained(tmp_path / "alone")
    with pytest.raises(UserError, match="no trained 'memory-indexer'"):
        IndexMemPress.from_pretrained(alone)
    with pytest.raises(UserError, match="PyramidKVPress decides more than scores"):
        MemoryPress(press=PyramidKVPress(), memories=memory_press.memories)


def test_ratio_is_the_wrapped_press_own(memory_press):
    press = MemoryPress(press=KnormPress(compression_ratio=0.2), memories=memory_press.memories)
    assert press.compression_ratio == 0.2
    press.compression_ratio = 0.5
    assert press.press.compression_ratio == 0.5


def test_a_quantized_cache_is_refused(memory_press):
    keys = torch.zeros(1, 2, 8, 16)
    leaves = torch.ones(1, 2, 8, dtype=torch.bool)
    with pytest.raises(UserError, match="DynamicCache"):
        memory_press._attached.write(
            plain().model.layers[0].self_attn, object.__new__(QuantizedCache), keys, keys, leaves, (keys, keys)
        )
