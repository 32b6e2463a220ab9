"""`model.generate` over an IndexMemCache gives the engine's text, for single rows and for rows of a padded batch."""

import pytest
import torch
from generating import NEW, asked, engine_answer, generated, padded, plain, read, texts
from press_cases import MEMORIES, checkpoint, geometry_of
from tiny_models import FAMILIES, random_ids, tiny_model
from transformers import DynamicCache

from indexmem import IndexMemCache
from indexmem.generation.held_rows import FIRST_ROOM

CONTEXT, QUESTION = 120, random_ids(7, seed=50)
METHODS = ("keydiff", "snapkv", "adakv", "random", "running_mean", "streaming_llm", "pyramidkv")
PARAMS = {"adakv": {"base": "knorm"}, "running_mean": {"base": "keydiff"}}


def named(method):
    return {"name": method, "params": PARAMS[method]} if method in PARAMS else method


@pytest.mark.parametrize("method", ["keydiff", "snapkv"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_question_behind_an_evicted_context_is_answered_as_by_the_engine(family, method):
    context, model = random_ids(CONTEXT), plain(family)
    ours = asked(model, IndexMemCache(model, method, 0.6), [context], [QUESTION])
    assert ours == [engine_answer(family, context, QUESTION, method, 0.6)]


@pytest.mark.parametrize("method", METHODS)
def test_any_method_that_needs_no_pass_of_its_own(method):
    context, model = random_ids(CONTEXT), plain()
    ours = asked(model, IndexMemCache(model, named(method), 0.5), [context], [QUESTION])
    assert ours == [engine_answer("llama", context, QUESTION, named(method), 0.5)]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_trained_modules_with_their_memory(tmp_path, family, memory):
    geometry, context, model = geometry_of(family), random_ids(CONTEXT), plain(family)
    folder = str(checkpoint(tmp_path, geometry, memory))
    cache = IndexMemCache.from_pretrained(folder, model, compression_ratio=0.8)
    assert asked(model, cache, [context], [QUESTION]) == [
        engine_answer(family, context, QUESTION, "indexmem", 0.8, folder)
    ]
    assert cache.memory_bytes > 0


@pytest.mark.parametrize("share", ["head", "layer", "model"])
def test_heads_of_a_trained_indexer_share_a_budget(tmp_path, share):
    folder = str(checkpoint(tmp_path, geometry_of(), trained={"indexer": {"share": share}}))
    context, model = random_ids(CONTEXT), plain()
    cache = IndexMemCache.from_pretrained(folder, model, 0.7, method="indexer")
    assert asked(model, cache, [context], [QUESTION]) == [
        engine_answer("llama", context, QUESTION, "indexer", 0.7, folder)
    ]
    ragged = cache.held_tokens.amin() < cache.held_tokens.amax()
    assert bool(ragged) == (share != "head")


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_prompt_read_by_generate_itself(family):
    """The first token is the full cache's, and all others come from what is left of the prompt."""
    prompt, model = random_ids(CONTEXT), plain(family)
    ours = generated(model, IndexMemCache(model, "keydiff", 0.7), padded([prompt]))
    (full,) = generated(model, DynamicCache(config=model.config.get_text_config()), padded([prompt]), new=1)
    rest = engine_answer(family, prompt, full, "keydiff", 0.7, new=NEW - 1)
    assert ours == [full + rest]


@pytest.mark.parametrize("lengths", [(70, 120, 90), (80, 80)])
@pytest.mark.parametrize("method", ["snapkv", "random", "adakv", "indexmem"])
@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3"])
def test_rows_of_a_batch_are_what_they_are_alone(tmp_path, family, method, lengths):
    model, contexts = plain(family), texts(lengths)
    folder = checkpoint(tmp_path, geometry_of(family), share_every=3)
    questions = texts([6] * len(lengths), seed=30)

    def cache():
        return IndexMemCache(model, named(method), 0.6, modules=folder)

    together = asked(model, cache(), contexts, questions)
    alone = [asked(model, cache(), [context], [question])[0] for context, question in zip(contexts, questions)]
    assert together == alone
    assert len({tuple(row) for row in together}) > 1


def test_an_answer_longer_than_the_room_for_it():
    context, model, new = random_ids(CONTEXT), plain(), 4 * FIRST_ROOM
    ours = asked(
        model, IndexMemCache(model, {"name": "adakv", "params": {"base": "knorm"}}, 0.5), [context], [QUESTION], new
    )
    assert ours == [engine_answer("llama", context, QUESTION, named("adakv"), 0.5, new=new)]


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_nothing_evicted_is_the_full_cache(ratio):
    """Also where a context is shorter than what its budget keeps."""
    model, prompts = plain(), texts([30, 50])
    settings = {"compression_ratio": 0.0} if ratio == 0 else {"budget": "64 tokens"}
    ours = generated(model, IndexMemCache(model, "snapkv", **settings), padded(prompts))
    assert ours == generated(model, DynamicCache(config=model.config), padded(prompts))


def test_sampling_and_a_chosen_attention_function():
    """Another attention function of the user's changes nothing; draws are those of the seed."""
    drawn = []
    for attention in ("sdpa", "eager"):
        model = tiny_model("llama", attention)
        torch.manual_seed(3)
        inputs = padded(texts([50, 70]))
        cache = IndexMemCache(model, "keydiff", 0.5)
        drawn.append(generated(model, cache, inputs, do_sample=True, temperature=0.7, num_return_sequences=2))
        assert model.config._attn_implementation == attention
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


def test_a_model_that_was_loaded_for_our_engine():
    model, context = tiny_model("llama"), random_ids(CONTEXT)
    assert asked(model, IndexMemCache(model, "keydiff", 0.5), [context], [QUESTION]) == [
        engine_answer("llama", context, QUESTION, "keydiff", 0.5)
    ]


def test_evicted_keys_and_values_are_freed():
    model, context = plain(), random_ids(400)
    full = read(model, IndexMemCache(model, "keydiff", 0.0), [context])
    cache = read(model, IndexMemCache(model, "keydiff", budget="40 tokens"), [context])
    assert (cache.held_tokens == 40).all()
    heads, dim, layers = 2, 16, 3
    assert cache.kv_bytes == layers * heads * (40 + FIRST_ROOM) * dim * 2 * 4
    assert full.kv_bytes == layers * heads * (400 + FIRST_ROOM) * dim * 2 * 4
