"""Indexers that read what a cache holds: the same scores on every path, old names and checkpoints unchanged."""

import json

import pytest
import torch
from kept_rows import kept_tokens
from kvpress import ScorerPress
from tiny_models import random_ids, tiny_backbone
from transformers import DynamicCache

from indexmem.config.load import validate, with_overrides
from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.distill.runs import LATER
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import CONFIG, save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.press import IndexerPress
from indexmem.eviction.reads import READS
from indexmem.models.attention import tapping

WIDTHS = {"hidden": 48, "key": 32, "key_pre": 32, "key_value": 64}  # of the tiny Llama


def checkpoint(folder, reads, **config):
    geometry = tiny_backbone().geometry
    torch.manual_seed(2)
    stack = IndexerStack(IndexerShape.of(IndexerConfig(reads=reads, **config), geometry), geometry)
    return save_modules({"indexer": stack}, folder)


def test_every_choice_of_the_setting_can_be_read():
    assert set(READS) == set(IndexerConfig.model_fields["reads"].annotation.__args__) == set(WIDTHS)


@pytest.mark.parametrize("reads", WIDTHS)
def test_scores_are_those_of_what_is_read_alone(reads, tmp_path):
    backbone, ids = tiny_backbone(), random_ids(40)
    folder = checkpoint(tmp_path, reads)
    stack, taps = IndexerStack.load(folder).requires_grad_(False), []
    assert stack[0].token[0].in_features == WIDTHS[reads]
    with torch.no_grad(), tapping(backbone.model, taps.append) as kwargs:
        backbone.model.get_decoder()(torch.tensor([ids]), use_cache=False, **kwargs)
    heads = lambda x_BHLd: torch.cat(list(x_BHLd[0]), dim=-1)  # noqa: E731
    expected = {
        "hidden": lambda tap: tap.hidden_BLD[0],
        "key": lambda tap: heads(tap.key_BHLd),
        "key_pre": lambda tap: heads(tap.key_pre_BHLd),
        "key_value": lambda tap: torch.cat((heads(tap.key_BHLd), heads(tap.value_BHLd)), dim=-1),
    }[reads]
    method = make_method(MethodConfig(name="indexer"), MethodContext(backbone.geometry, checkpoint=str(folder)))
    for layer, tap in enumerate(taps):
        scores_GL = stack[layer].token(expected(tap)).T
        torch.testing.assert_close(method.score(tap)[0], scores_GL)


@pytest.mark.parametrize("reads", WIDTHS)
def test_the_press_keeps_what_the_engine_keeps(reads, tmp_path):
    backbone, ids, folder = tiny_backbone(), random_ids(50), checkpoint(tmp_path, reads)
    method = make_method(MethodConfig(name="indexer"), MethodContext(backbone.geometry, checkpoint=str(folder)))
    filled = prefill(backbone, ids, {"indexer": method}, 4)
    row = method.compress(filled.context, filled.rankings_HL["indexer"], 25)
    press, cache = IndexerPress.from_pretrained(folder, compression_ratio=0.5, share="head"), DynamicCache()
    assert isinstance(press, ScorerPress)
    with torch.no_grad(), press(backbone.model):
        backbone.model.model(input_ids=torch.tensor([ids]), past_key_values=cache)
    for layer in range(3):
        keys_HKd, _ = kept_tokens(row, layer)
        torch.testing.assert_close(cache.layers[layer].keys[0], keys_HKd)


def test_pairs_read_hidden_states():
    with pytest.raises(ValueError, match="reads=key is for the token term alone"):
        IndexerConfig(reads="key", pair_term=True)


def test_tokens_are_not_chosen_by_keys_that_do_not_exist_yet(tmp_path):
    geometry, folder = tiny_backbone().geometry, checkpoint(tmp_path, "key")
    with pytest.raises(UserError, match=r"before they have K and V.*after_prefill"):
        make_method(MethodConfig(name="indexer"), MethodContext(geometry, checkpoint=str(folder), layer_by_layer=True))


def test_checkpoints_from_before_read_hidden_states(tmp_path):
    folder = checkpoint(tmp_path, "hidden")
    config = json.loads((folder / CONFIG).read_text())
    assert config["modules"]["indexer"]["shape"].pop("reads") == "hidden"
    (folder / CONFIG).write_text(json.dumps(config))
    assert IndexerStack.load(folder).shape.reads == "hidden"


def test_the_default_leaves_names_of_trainings_and_specs_as_they_were():
    assert LATER["indexer"]["reads"] == "hidden"
    spec = validate({}, "test")
    assert "reads" not in json.dumps(spec.indexer.model_dump(exclude_defaults=True))
    assert with_overrides(spec, ["indexer.reads=key"]).indexer.reads == "key"
