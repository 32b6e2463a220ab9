"""Locret's retention heads and the method that ranks with them."""

import pytest
import torch
from tiny_models import FULL_FAMILIES, random_ids, tiny_backbone, tiny_config, tiny_model
from transformers import LlamaConfig

from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.locret import LocretShape, LocretStack
from indexmem.eviction.methods.names import needs_training
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import tapping
from indexmem.models.geometry import Geometry


def stack(family="llama", hidden=32) -> LocretStack:
    torch.manual_seed(0)
    return LocretStack(LocretShape(hidden), Geometry.of(tiny_config(family)))


def taps_of(family, ids):
    taps = []
    with torch.no_grad(), tapping(tiny_model(family), taps.append) as kwargs:
        tiny_model(family).get_decoder()(torch.tensor(ids), **kwargs)
    return taps


def test_parameter_count_of_the_paper():
    """Llama-3.1-8B: 6144 * 1024 + 1024 * 8 a layer, 201.6M in all; no biases, as in the authors' code."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    )
    with torch.device("meta"):
        heads = LocretStack(LocretShape(), Geometry.of(config))
    assert sum(p.numel() for p in heads[0].parameters()) == 6_299_648
    assert heads.parameter_count == 201_588_736


def test_scores_equal_the_reference_token_by_token():
    heads = stack()
    taps = taps_of("llama", [random_ids(20), random_ids(20, seed=1)])
    for tap in taps:
        head = heads[tap.layer].double()
        got = heads.predict(tap)
        assert got.shape == (2, 2, 20)
        for b in range(2):
            for t in range(20):
                # Straight from the projections: before rotation.
                hidden = tap.hidden_BLD[b, t]
                states = [p(hidden) for p in (tap.module.q_proj, tap.module.k_proj, tap.module.v_proj)]
                inner = head.inner.weight @ torch.cat(states).double()
                expected = head.outer.weight @ (inner * torch.sigmoid(inner))
                torch.testing.assert_close(got[b, :, t], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FULL_FAMILIES)
def test_a_score_depends_on_the_token_and_not_on_its_position(family):
    """In the first layer the states of a token are its own; rotation would make its scores differ."""
    heads = stack(family)
    tap = taps_of(family, [[7, 9, 7, 30, 31, 7]])[0]
    scores = heads.predict(tap)[0]
    for later in (2, 5):
        torch.testing.assert_close(scores[:, later], scores[:, 0], atol=1e-4, rtol=1e-4)
    assert (scores[:, 1] - scores[:, 0]).abs().min() > 1e-3


@pytest.fixture
def checkpoint(tmp_path):
    return str(save_modules({"locret": stack()}, tmp_path / "checkpoint"))


def build(folder, **params):
    return make_method(
        MethodConfig(name="locret", params=params), MethodContext(tiny_backbone().geometry, "cpu", folder)
    )


def test_checkpoint_round_trip(checkpoint):
    loaded = LocretStack.load(checkpoint)
    assert loaded.shape == LocretShape(32)
    for name, tensor in stack().state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_the_method_keeps_the_highest_scores_of_each_kv_head(checkpoint):
    ids = random_ids(60)
    method = build(checkpoint)
    done = prefill(tiny_backbone(), ids, {"m": method}, sinks=0)
    row = method.compress(done.context, done.rankings_HL["m"], done.context.tokens * (1 - 0.75))
    for tap, kept in zip(taps_of("llama", [ids]), row.kept_HK, strict=True):
        expected = stack().predict(tap)[0].topk(15).indices.sort().values
        assert torch.equal(kept, expected)
        assert not torch.equal(kept[0], kept[1]), "the heads must not agree, or this shows nothing"


@pytest.mark.parametrize(("recent", "budget", "last"), [(0, 15, 0), (6, 15, 6), (6, 6, 2), (500, 15, 11)])
def test_recent_tokens_come_right_after_the_sinks_the_latest_first(checkpoint, recent, budget, last):
    ids = random_ids(60)
    methods = {"plain": build(checkpoint), "recent": build(checkpoint, recent=recent)}
    done = prefill(tiny_backbone(), ids, methods, sinks=4)
    for plain, ranking in zip(done.rankings_HL["plain"], done.rankings_HL["recent"]):
        for head in range(2):
            first = ranking[head, :budget].tolist()
            assert first[:4] == [0, 1, 2, 3]
            assert first[4 : 4 + last] == list(range(59, 59 - last, -1))
            others = [t for t in plain[head].tolist() if t >= 4 and t < 60 - last]
            assert first[4 + last :] == others[: budget - 4 - last]


def test_a_spec_must_train_it_or_name_a_checkpoint():
    assert needs_training(MethodConfig(name="locret"))
    assert not needs_training(MethodConfig(name="locret", params={"checkpoint": "folder"}))
    with pytest.raises(UserError, match="Method 'locret': needs a trained checkpoint"):
        build(None)


def test_mistakes_are_named(checkpoint, tmp_path):
    with pytest.raises(UserError, match=r"recent=-1 must be a number of tokens"):
        build(checkpoint, recent=-1)
    with pytest.raises(UserError, match=r"unknown parameter 'local'\. Allowed: checkpoint, recent"):
        build(checkpoint, local=3)
    other = Geometry.of(tiny_config("llama", num_key_value_heads=4))
    with pytest.raises(UserError, match="kv_heads: trained for 2, model has 4"):
        make_method(MethodConfig(name="locret"), MethodContext(other, checkpoint=checkpoint))
    geometry = tiny_backbone().geometry
    indexer = IndexerStack(IndexerShape.of(IndexerConfig(), geometry), geometry)
    with pytest.raises(UserError, match=r"holds no trained 'locret' \(it holds: indexer\)"):
        build(str(save_modules({"indexer": indexer}, tmp_path / "indexer")))


def test_the_identity_of_a_cell_follows_the_weights(checkpoint, tmp_path):
    changed = stack()
    with torch.no_grad():
        changed[0].outer.weight[0, 0] += 1
    other = save_modules({"locret": changed}, tmp_path / "changed")
    assert build(checkpoint).checkpoint == build(checkpoint).checkpoint != build(str(other)).checkpoint
