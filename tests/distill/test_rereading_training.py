"""What modules learn from texts that are read twice: batches, layers, and the piece that asks a memory."""

import pytest
import torch
from dense_reference import dense_attention
from tiny_models import FULL_LAYERS, random_ids, tiny_backbone, tiny_model

from indexmem.config.load import validate
from indexmem.distill.module import DistillModule
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.memory import _with_piece
from indexmem.distill.trainees.registry import make_trainees
from indexmem.models.attention import attention_layers, tapping
from indexmem.models.rereading import LEAD_IN_TOKENS, Readings

LENGTHS = (60, 47, 60, 33)
REQUEST, CHUNK, ASKED = "Again", 20, 12
FAMILIES = ["llama", "qwen3", "gemma3_text"]
SPEC = validate(
    {
        "indexer": {"pair_term": True},
        "target": {"request": REQUEST, "chunk": CHUNK},
        "memory": {"features": "positive", "dim": 16, "bases": ["indexer", "knorm"]},  # not slots: they follow batches
        "distill": {"modules": ["indexer", "memory"], "query_tokens": ASKED},
    },
    "test",
)
DOCUMENTS = [random_ids(length, seed=number) for number, length in enumerate(LENGTHS)]


def module_for(family):
    torch.manual_seed(0)
    backbone = tiny_backbone(family)
    return DistillModule(backbone, make_trainees(SPEC, backbone.geometry), SPEC.target)


def losses_of(module, numbers, step=3):
    documents = [DOCUMENTS[number] for number in numbers]
    lengths = torch.tensor([len(document) for document in documents])
    row = torch.tensor([[token for document in documents for token in document]])
    return module(row, lengths, StepContext(step, seed=0), packed=True)


def gradients(module, losses):
    return torch.autograd.grad(losses.sum(), list(module.parameters()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_is_the_mean_of_its_documents(family):
    module = module_for(family)
    together = losses_of(module, range(4))
    alone = [losses_of(module, [number]) for number in range(4)]
    assert together.shape == (3, 3) and (together > 0).all()
    torch.testing.assert_close(together, sum(alone) / 4, rtol=2e-4, atol=1e-6)


def test_two_ranks_or_micro_batches_have_the_gradients_of_one():
    """DDP takes the mean over ranks, accumulation that over micro-batches; each has documents of its own lengths."""
    module = module_for("llama")
    whole = gradients(module, losses_of(module, range(4)))
    halves = [gradients(module, losses_of(module, numbers)) for numbers in ((0, 1), (2, 3))]
    for one, *parts in zip(whole, *halves, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, sum(parts) / 2, rtol=1e-3, atol=1e-3 * float(one.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_s_losses_teach_that_layer_alone(family):
    module = module_for(family)
    losses = losses_of(module, range(4))
    assert losses.isfinite().all()
    names = [name for name, _ in module.named_parameters()]
    for trainee, prefix in enumerate(("trainees.0.indexers.", "trainees.1.memories.", "trainees.2.memories.")):
        for layer in range(3):
            found = torch.autograd.grad(losses[trainee, layer], list(module.parameters()), retain_graph=True)
            taught = {name for name, gradient in zip(names, found, strict=True) if gradient.any()}
            assert taught == {name for name in names if name.startswith(f"{prefix}{layer}.")}


def eager_outputs(family, ids):
    """What attention adds up in each layer with full attention, before its output projection: [S, Q, d] each."""
    model, seen = tiny_model(family, "eager"), []
    modules = attention_layers(model)
    handles = [m.o_proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][0])) for m in modules]
    try:
        with torch.no_grad():
            model.get_decoder()(torch.tensor([ids]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    layers = FULL_LAYERS if family == "gemma3_text" else range(3)
    return [seen[layer].unflatten(-1, (4, 16)) for layer in (layers if len(seen) > 3 else range(3))]


def read_twice(family, request):
    taps, backbone = [], tiny_backbone(family)
    readings = Readings.of(torch.tensor(LENGTHS), len(request), CHUNK)
    row = readings.row(torch.tensor([[token for document in DOCUMENTS for token in document]]), request)
    with torch.no_grad(), tapping(backbone.model, taps.append, readings=readings) as kwargs:
        backbone.model.get_decoder()(row, use_cache=False, **kwargs)
    return taps


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("rows", "where"), [((0, 2), 0.0), ((0, 2), 0.5), ((1,), 0.999), ((3,), 0.3)])
def test_a_memory_is_asked_by_a_piece_of_the_second_reading(family, rows, where):
    """Full attention of the piece is that of a plain pass over [document; request; chunk]; so is what is kept."""
    request = (5, 17, 3)
    length = LENGTHS[rows[0]]
    _, memory, _ = make_trainees(SPEC, tiny_backbone(family).geometry)
    # The piece that `where` means: a chunk of the document, and some of its tokens.
    starts = range(0, length, CHUNK)
    number, inside = divmod(where * len(starts), 1)
    start = starts[int(number)]
    stop = min(start + CHUNK, length)
    asked = min(ASKED, stop - start)
    end = start + asked + int(inside * (stop - start - asked))
    replays = [[*DOCUMENTS[r], *request, *DOCUMENTS[r][max(0, start - LEAD_IN_TOKENS) : end]] for r in rows]
    expected = [eager_outputs(family, ids) for ids in replays]
    for layer, tap in enumerate(read_twice(family, request)):
        alone = tap.rows(torch.tensor(rows), length)
        joined, context, asking = _with_piece(alone, tap.again, rows, where, ASKED)
        assert (context, asking) == (length, asked)
        assert joined.key_BHLd.shape[2] == len(replays[0])
        scene = memory.scene(joined, context, asking, 0.5)
        mask_LT = torch.ones(len(replays[0]), len(replays[0]), dtype=torch.bool).tril()
        for number, outputs in enumerate(expected):
            theirs_Qnd = outputs[layer][-asked:].transpose(0, 1)
            torch.testing.assert_close(scene.full_BQnd[number], theirs_Qnd, atol=2e-4, rtol=2e-4)
            leaves_HC = scene.leaves_BHC[number]
            assert 0 < leaves_HC.sum() < leaves_HC.numel()
            for head in range(2):
                kept_LT = mask_LT.clone()
                kept_LT[:, :length] &= ~leaves_HC[head]
                group = slice(2 * head, 2 * head + 2)
                plain_QLd = dense_attention(
                    joined.query_BQLd[number, group, -asked:],
                    joined.key_BHLd[number, head : head + 1],
                    joined.value_BHLd[number, head : head + 1],
                    kept_LT[-asked:],
                    tap.scaling,
                )
                ours = scene.plain_BQnd[number, group].double()
                torch.testing.assert_close(ours, plain_QLd, atol=1e-4, rtol=1e-4)


def test_every_chunk_and_place_asks_at_some_step():
    tap = read_twice("llama", ())[0]
    alone = tap.rows(torch.tensor([0]), LENGTHS[0])
    pieces = set()
    for step in range(60):
        where = StepContext(step, 0).uniform(0, 1, "/piece")
        joined, context, asked = _with_piece(alone, tap.again, [0], where, ASKED)
        pieces.add((int(where * 3), joined.key_BHLd.shape[2] - context))
        assert asked == ASKED
    for chunk in range(3):
        lead_in = LEAD_IN_TOKENS if chunk else 0
        ends = {end - lead_in for number, end in pieces if number == chunk}
        assert ends <= set(range(ASKED, CHUNK + 1)) and len(ends) > 4
