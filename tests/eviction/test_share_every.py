"""One indexer for several neighbouring layers (IndexCache): sizes, rankings, training, checkpoint."""

import math

import pytest
import torch
from tiny_models import random_ids, tiny_backbone, tiny_config
from tiny_tokenizers import TEXT
from transformers import LlamaConfig

from indexmem.config.load import validate, with_overrides
from indexmem.config.modules import IndexerConfig
from indexmem.config.schema import MethodConfig
from indexmem.distill.history import History
from indexmem.distill.loop import LocalContext, distill
from indexmem.distill.losses import importance_bce
from indexmem.distill.module import DistillModule
from indexmem.distill.targets import reconstruction_target
from indexmem.distill.trainees.base import StepContext
from indexmem.distill.trainees.indexer import IndexerTrainee
from indexmem.engine.prefill import prefill
from indexmem.eviction.checkpoint import read_config, save_modules, weights_hash
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.ranking import rank
from indexmem.models.attention import tapping
from indexmem.models.geometry import Geometry
from indexmem.models.rereading import Readings


def stack_for(geometry: Geometry, share_every: int, **settings) -> IndexerStack:
    """With both terms, unless told otherwise."""
    torch.manual_seed(1)
    config = IndexerConfig(**{"share_every": share_every, "pair_term": True} | settings)
    return IndexerStack(IndexerShape.of(config, geometry), geometry)


def method_of(stack: IndexerStack, folder) -> object:
    checkpoint = str(save_modules({"indexer": stack}, folder))
    return make_method(MethodConfig(name="indexer"), MethodContext(stack.geometry, checkpoint=checkpoint))


@pytest.fixture
def spec(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    schedule = {"warmup": 2, "stable": 58, "decay": 0, "kind": "constant", "peak_lr": 0.02}
    return validate(
        {
            "indexer": {"share_every": 2, "pair_term": True},
            "distill": {"texts": [str(tmp_path / "text.txt")], "length": 64, "batch_size": 2, "schedule": schedule},
        },
        "test",
    )


@pytest.mark.parametrize("layers", [1, 3, 4, 7])
@pytest.mark.parametrize("share_every", [1, 2, 3, 4, 9])
def test_one_indexer_for_each_group(layers, share_every):
    geometry = Geometry.of(tiny_config("llama", num_hidden_layers=layers))
    stack, alone = stack_for(geometry, share_every), stack_for(geometry, 1)
    assert len(stack) == math.ceil(layers / share_every)
    assert stack.parameter_count * layers == alone.parameter_count * len(stack)
    owners = [stack.owned_by(layer) for layer in range(layers)]
    assert [layer for layer, owner in enumerate(owners) if owner is not None] == list(range(0, layers, share_every))
    assert [owner for owner in owners if owner is not None] == list(stack)


def test_parameter_count_of_the_paper_with_four_layers_to_an_indexer():
    """Llama-3.1-8B: 8 indexers of 622,592 parameters."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    )
    with torch.device("meta"):
        stack = stack_for(Geometry.of(config), 4, scope="layer", token_term=0)
    assert (len(stack), stack.parameter_count) == (8, 4_980_736)


@pytest.mark.parametrize("scope", ["layer", "kv_head"])
def test_a_group_ranks_by_its_owners_scores(scope, tmp_path):
    backbone = tiny_backbone()
    stack = stack_for(backbone.geometry, 2, scope=scope)
    method = method_of(stack, tmp_path / "c")
    taps = []
    for ids in (random_ids(70), random_ids(50, seed=1)):  # twice: nothing of the first context may be left
        taps.clear()
        with torch.inference_mode(), tapping(backbone.model, taps.append) as kwargs:
            backbone.model.get_decoder()(torch.tensor([ids]), use_cache=False, **kwargs)
        lengths = torch.tensor([len(ids)])
        expected = []
        for layer, indexer in ((0, stack[0]), (0, stack[0]), (2, stack[1])):
            with torch.no_grad():
                scores = indexer(taps[layer].hidden_BLD, taps[layer].query_pre_BQLd, lengths)[0]
            expected.append(rank(scores.expand(backbone.geometry.kv_heads, -1), sinks=4))
        done = prefill(backbone, ids, {"m": method}, sinks=4)
        assert not done.errors
        for ranking, owner in zip(done.rankings_HL["m"], expected, strict=True):
            assert torch.equal(ranking, owner)
        assert torch.equal(done.rankings_HL["m"][0], done.rankings_HL["m"][1])
        assert not torch.equal(done.rankings_HL["m"][1], done.rankings_HL["m"][2])


@pytest.mark.parametrize(("scope", "rows"), [("layer", 1), ("kv_head", 2)])
@pytest.mark.parametrize(("share_every", "owners"), [(1, 3), (2, 2), (3, 1)])
@pytest.mark.parametrize(("terms", "numbers"), [("pair", 5), ("token", 1), ("both", 6)])
def test_bytes_count_owners_only(scope, rows, share_every, owners, terms, numbers, tmp_path):
    backbone = tiny_backbone()
    settings = {"pair_term": False} if terms == "token" else {"pair_term": True, "dim": 5}
    settings["token_term"] = 0 if terms == "pair" else 8
    stack = stack_for(backbone.geometry, share_every, scope=scope, **settings)
    method = method_of(stack, tmp_path / "c")
    done = prefill(backbone, random_ids(40), {"m": method}, sinks=4)
    row = method.compress(done.context, done.rankings_HL["m"], done.context.tokens * (1 - 0.5))
    assert row.indexer_bytes == owners * 20 * rows * numbers * 4  # kept tokens x (dim, token term) x fp32


def test_each_layer_teaches_its_groups_owner_and_no_other(spec):
    backbone = tiny_backbone()
    torch.manual_seed(2)
    trainee = IndexerTrainee(spec, backbone.geometry)
    ids, lengths = torch.tensor([random_ids(48), random_ids(48, seed=1)]), torch.tensor([48, 31])
    losses = DistillModule(backbone, [trainee], spec.target)(ids, lengths, StepContext(0, 0))[0]

    taps, readings = [], Readings.of(lengths, 0, spec.target.chunk)
    row = readings.row(readings.first.join(ids), ())
    with torch.no_grad(), tapping(backbone.model, taps.append, readings=readings) as kwargs:
        backbone.model.get_decoder()(row, use_cache=False, **kwargs)
    for layer, owner in ((0, 0), (1, 0), (2, 1)):
        importance = trainee.indexers[owner](taps[2 * owner].hidden_BLD, taps[2 * owner].query_pre_BQLd, lengths)
        tap = taps[layer]
        target = reconstruction_target(tap.again, tap.key_BHLd, rows=2, scale=tap.scaling)
        expected = importance_bce(target, importance, lengths, spec.target.sinks).mean()
        torch.testing.assert_close(losses[layer], expected)

        weights = list(trainee.named_parameters())
        gradients = torch.autograd.grad(losses[layer], [w for _, w in weights], retain_graph=True)
        alone = torch.autograd.grad(expected, [w for _, w in weights], allow_unused=True)
        for (name, _), gradient, by_hand in zip(weights, gradients, alone):
            belongs = name.startswith(f"indexers.{owner}.")
            assert bool(gradient.any()) == belongs, (layer, name)
            if belongs:
                torch.testing.assert_close(gradient, by_hand)


def test_training_learns_and_its_checkpoint_keeps_the_sharing(spec, tmp_path):
    history = History(tmp_path / "history", span=10)
    spec = with_overrides(spec, ["target.loss=kl"])  # bce also counts the entropy of its targets
    distill(spec, LocalContext(tmp_path / "run"), history, tiny_backbone())
    losses = [row["loss"] for row in history.read()]
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.85 * sum(losses[:10])

    folder = tmp_path / "run" / "step-00000060"
    stack = IndexerStack.load(folder)
    assert (len(stack), stack.shape.share_every) == (2, 2)
    stored = read_config(folder)["modules"]["indexer"]
    assert (stored["shape"]["share_every"], stored["parameters"]) == (2, stack.parameter_count)


def test_checkpoint_round_trip(tmp_path):
    geometry = Geometry.of(tiny_config("llama"))
    stack = stack_for(geometry, 2)
    save_modules({"indexer": stack}, tmp_path / "a")
    loaded = IndexerStack.load(tmp_path / "a")
    assert loaded.shape == stack.shape
    assert loaded.state_dict().keys() == stack.state_dict().keys()
    for name, tensor in stack.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    # With 3 layers, sharing by 3 and by 4 hold the same weights; only the shape tells them apart.
    hashes = set()
    for share_every in (3, 4):
        save_modules({"indexer": stack_for(geometry, share_every)}, tmp_path / str(share_every))
        hashes.add(weights_hash(tmp_path / str(share_every), "indexer"))
    assert len(hashes) == 2
