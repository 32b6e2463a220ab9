"""The second reading against transformers' own eager attention on [document; request; chunk], one text at a time."""

import pytest
import torch
from tiny_models import FULL_LAYERS, random_ids, tiny_backbone, tiny_model

from indexmem.distill.targets import reconstruction_target
from indexmem.models.attention import tapping
from indexmem.models.rereading import LEAD_IN_TOKENS, Readings

LENGTHS = (41, 64, 64, 9)
REQUEST = (5, 17, 3)


def read_twice(family, lengths, request, chunk, visit):
    backbone = tiny_backbone(family)
    documents = [random_ids(length, seed=number) for number, length in enumerate(lengths)]
    readings = Readings.of(torch.tensor(lengths), len(request), chunk)
    row = readings.row(torch.tensor([[token for document in documents for token in document]]), request)
    with torch.no_grad(), tapping(backbone.model, visit, readings=readings) as kwargs:
        output = backbone.model.get_decoder()(row, use_cache=False, **kwargs).last_hidden_state
    return documents, readings, output


def eager(family, document, request, start, stop):
    """Attention weights [layers, Q, S, S] and last hidden states of one document followed by one chunk's replay."""
    replay = [*request, *document[max(0, start - LEAD_IN_TOKENS) : stop]]
    model = tiny_model(family, "eager")
    ids = torch.tensor([[*document, *replay]])
    with torch.no_grad():
        done = model.get_decoder()(ids, use_cache=False, output_attentions=True)
    return torch.cat(done.attentions), done.last_hidden_state[0]


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "gemma3_text"])
@pytest.mark.parametrize(("request_ids", "chunk"), [((), 1000), (REQUEST, 1000), (REQUEST, 25), ((), 16)])
def test_targets_are_the_largest_weights_of_the_repetition(family, request_ids, chunk):
    targets = []

    def visit(tap):
        both = [
            reconstruction_target(tap.again, tap.key_BHLd, rows=rows, scale=tap.scaling, heads=heads, block=block)
            for rows, heads, block in ((2, "max", None), (2, "max", 7), (1, "max", None), (2, "mean", None))
        ]
        torch.testing.assert_close(both[0], both[1], atol=1e-5, rtol=1e-5)
        targets.append((both[0], both[2], both[3]))

    documents, readings, output = read_twice(family, LENGTHS, request_ids, chunk, visit)
    layers = FULL_LAYERS if family == "gemma3_text" else range(3)
    second = readings.split_second(output)
    for row, part in enumerate(readings.chunks):
        document = documents[part.document]
        weights, hidden = eager(family, document, request_ids, part.start, part.stop)
        length = len(document)
        torch.testing.assert_close(second[row, : part.tokens], hidden[length:], atol=2e-4, rtol=2e-4)
        for (per_head, per_layer, mean), layer in zip(targets, layers, strict=True):
            theirs_QC = weights[layer][:, length:, part.start : part.stop].log()
            best_QC = theirs_QC.amax(1)
            where = part.document, slice(None), slice(part.start, part.stop)
            torch.testing.assert_close(per_head[where], best_QC.unflatten(0, (2, -1)).amax(1), atol=1e-3, rtol=1e-3)
            torch.testing.assert_close(per_layer[where][0], best_QC.amax(0), atol=1e-3, rtol=1e-3)
            averaged = theirs_QC.unflatten(0, (2, -1)).mean(1).amax(1)
            torch.testing.assert_close(mean[where], averaged, atol=1e-3, rtol=1e-3)
    for per_head, _, _ in targets:
        for document, length in enumerate(LENGTHS):
            assert (per_head[document, :, length:] == -torch.inf).all()


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_the_first_reading_is_as_without_a_second(family):
    seen_twice, seen_once = [], []
    documents, readings, output = read_twice(family, LENGTHS, REQUEST, 25, lambda tap: seen_twice.append(tap))
    backbone = tiny_backbone(family)
    for number, document in enumerate(documents):
        seen_once.clear()
        with torch.no_grad(), tapping(backbone.model, lambda tap: seen_once.append(tap)) as kwargs:
            alone = backbone.model.get_decoder()(torch.tensor([document]), use_cache=False, **kwargs).last_hidden_state
        torch.testing.assert_close(
            readings.split_first(output)[number, : len(document)], alone[0], atol=1e-4, rtol=1e-4
        )
        for twice, once in zip(seen_twice, seen_once, strict=True):
            tokens = len(document)
            for name in ("query_BQLd", "key_BHLd", "value_BHLd"):
                ours, theirs = getattr(twice, name)[number, :, :tokens], getattr(once, name)[0]
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(twice.hidden_BLD[number, :tokens], once.hidden_BLD[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(
                twice.query_pre_BQLd[number, :, :tokens], once.query_pre_BQLd[0], atol=1e-4, rtol=1e-4
            )
