"""Further `generate` calls over one IndexMemCache, its copies, and what it leaves on a model."""

import copy

import pytest
import torch
from generating import NEW, asked, generated, padded, plain, read, texts
from press_cases import checkpoint, geometry_of
from tiny_models import random_ids
from transformers import DynamicCache

from indexmem import IndexMemCache

ENDS = 5  # tokens after which the first row of a batch has answered


def conversation(model, cache, prompt, questions, new=NEW):
    """Answers of one row to a prompt and to further questions, each asked with all that was said before."""
    said, answers = list(prompt), []
    for question in ([], *questions):
        said += question
        (answer,) = generated(model, cache, padded([said]), new)
        said += answer
        answers.append(answer)
    return answers


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("length", [6, 90])  # the second is longer than the tiny model's window
def test_a_second_call_goes_on_where_the_first_one_ended(family, length):
    """With nothing evicted both calls are the full cache's; the second one reads the answer's last token first."""
    model, questions = plain(family), texts([length, 5], seed=20)
    prompt = random_ids(60)
    ours = conversation(model, IndexMemCache(model, "keydiff", 0.0), prompt, questions)
    full = conversation(model, DynamicCache(config=model.config.get_text_config()), prompt, questions)
    assert ours == full


def test_later_turns_are_held_in_full(tmp_path):
    model = plain()
    folder = checkpoint(tmp_path, geometry_of(), trained={"indexer": {"share": "model"}})
    cache = IndexMemCache.from_pretrained(folder, model, 0.8)
    prompt, question = random_ids(100), random_ids(9, seed=4)
    conversation(model, cache, prompt, [question])
    read_later = len(question) + 2 * NEW - 1  # the last token of an answer is read by the next call
    assert cache.get_seq_length() == 100 + read_later
    assert (cache.held_tokens.double().mean() - read_later).item() == pytest.approx(20, abs=1)


def turn(sequences, mask, questions):
    """A batch's next inputs: questions of unequal length, padded on the left, behind what was said."""
    asked_next = padded(questions)
    return {
        "input_ids": torch.cat((sequences, asked_next["input_ids"]), dim=1),
        "attention_mask": torch.cat((mask, asked_next["attention_mask"]), dim=1),
    }


@pytest.mark.parametrize("memory", ["slots", "paper"])
def test_a_batch_whose_rows_end_at_different_times(tmp_path, memory):
    """The mask hides padding behind a short answer and before a short question; rows stay what they are alone."""
    model, contexts, questions = plain(), texts([70, 100]), texts([4, 9], seed=40)
    folder = checkpoint(tmp_path, geometry_of(), memory)

    def cache():
        return IndexMemCache.from_pretrained(folder, model, 0.6)

    together, inputs = cache(), padded(contexts)
    answers = generated(model, together, inputs)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, NEW), value=1)
    mask[0, -(NEW - ENDS) :] = 0  # the first row had said all after some tokens
    sequences = torch.cat((inputs["input_ids"], torch.tensor(answers)), dim=1)
    second = generated(model, together, turn(sequences, mask, questions))
    for row, said in enumerate((ENDS, NEW)):
        alone = cache()
        (answer,) = generated(model, alone, padded([contexts[row]]), said)
        assert answer == answers[row][:said]
        (again,) = generated(model, alone, padded([contexts[row] + answer + questions[row]]))
        assert again == second[row]


def test_logits_of_a_question_come_in_the_order_of_its_tokens():
    model, contexts = plain(), texts([40, 60])
    together = read(model, IndexMemCache(model, "keydiff", 0.5), contexts)
    question = torch.tensor([[5, 0, 0, 6], [7, 8, 9, 10]])
    mask = torch.cat((padded(contexts)["attention_mask"], torch.tensor([[1, 0, 0, 1], [1, 1, 1, 1]])), dim=1)
    with torch.no_grad():
        logits = model(question, attention_mask=mask, past_key_values=together).logits
        alone = read(model, IndexMemCache(model, "keydiff", 0.5), contexts[:1])
        expected = model(torch.tensor([[5, 6]]), past_key_values=alone).logits
    torch.testing.assert_close(logits[0, [0, 3]], expected[0], atol=1e-4, rtol=1e-4)


def test_a_copy_answers_for_itself(tmp_path):
    """One context read once, several questions: each gets a copy, as with any cache of transformers."""
    model, context = plain(), random_ids(90)
    folder = checkpoint(tmp_path, geometry_of())
    kept = read(model, IndexMemCache.from_pretrained(folder, model, 0.7), [context])
    questions = [random_ids(6, seed=seed) for seed in (1, 2)]
    answers = [generated(model, copy.deepcopy(kept), padded([context + question])) for question in questions]
    fresh = [asked(model, IndexMemCache.from_pretrained(folder, model, 0.7), [context], [q]) for q in questions]
    assert answers == fresh
    assert kept.get_seq_length() == 90
    assert copy.deepcopy(kept)._method is kept._method


def test_a_reset_cache_is_as_new():
    model, first, second = plain(), random_ids(80), random_ids(70, seed=1)
    cache = IndexMemCache(model, "keydiff", 0.5)
    generated(model, cache, padded([first]))
    cache.reset()
    assert (cache.get_seq_length(), cache.kv_bytes) == (0, 0)
    assert generated(model, cache, padded([second])) == generated(
        model, IndexMemCache(model, "keydiff", 0.5), padded([second])
    )


def test_other_caches_and_the_model_stay_as_they_were():
    model, inputs = plain(), padded(texts([40, 60]))
    with torch.no_grad():
        before = model(**inputs).logits
    IndexMemCache(model, "keydiff", 0.5)
    IndexMemCache(model, "snapkv", 0.5)
    generated(model, IndexMemCache(model, "keydiff", 0.5), inputs)
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, before)
        assert torch.equal(model(**inputs, past_key_values=DynamicCache()).logits, before)
    assert len(model._forward_pre_hooks) == len(model._forward_hooks) == 1
    assert model.config._attn_implementation == "sdpa"


def test_reading_in_inference_mode_and_generating_outside_of_it():
    model, context, question = plain(), random_ids(80), random_ids(5, seed=3)
    cache = IndexMemCache(model, {"name": "adakv", "params": {"base": "knorm"}}, 0.5)
    with torch.inference_mode():
        model(torch.tensor([context]), past_key_values=cache)
        model(torch.tensor([question]), past_key_values=cache)
    (answer,) = generated(model, cache, padded([[*context, *question, 7]]))
    alone = read(model, IndexMemCache(model, {"name": "adakv", "params": {"base": "knorm"}}, 0.5), [context])
    assert [answer] == generated(model, alone, padded([[*context, *question, 7]]))
