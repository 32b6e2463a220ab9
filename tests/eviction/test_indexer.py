"""The streaming indexer against the dense fp64 reference: values, argmax, gradients."""

import json

import pytest
import torch
from dense_reference import dense_importance
from tiny_models import tiny_config
from transformers import LlamaConfig

from indexmem.config.modules import IndexerConfig
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_geometry, read_config, save_modules, weights_hash
from indexmem.eviction.indexer import Indexer, IndexerShape, IndexerStack
from indexmem.eviction.methods.learned import trained_share
from indexmem.eviction.streaming import causal_max
from indexmem.models.assets import modules_folder, shipped_modules
from indexmem.models.geometry import Geometry

HIDDEN, QUERY_HEADS, HEAD_DIM = 24, 4, 6
LENGTHS = (37, 20, 1)
TERMS = {
    "pair": {"pair_term": True, "token_term": 0},
    "token": {"pair_term": False, "token_term": 7},
    "both": {"pair_term": True, "token_term": 7},
}


def make(
    scope: str, activation: str = "relu", dtype=torch.float64, terms: str = "both"
) -> tuple[Indexer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    rows = 2 if scope == "kv_head" else 1
    shape = IndexerShape(scope, heads=3, dim=5, activation=activation, rows=rows, **TERMS[terms])
    indexer = Indexer(shape, HIDDEN, QUERY_HEADS * HEAD_DIM).to(dtype)
    hidden = torch.randn(len(LENGTHS), max(LENGTHS), HIDDEN, dtype=dtype)
    query = torch.randn(len(LENGTHS), QUERY_HEADS, max(LENGTHS), HEAD_DIM, dtype=dtype)
    return indexer, hidden, query


@pytest.mark.parametrize("block", [1, 7, 16, 64])
@pytest.mark.parametrize("scope", ["layer", "kv_head"])
@pytest.mark.parametrize(
    ("activation", "terms"),
    [("relu", "pair"), ("softplus", "pair"), ("identity", "pair"), ("relu", "both"), ("relu", "token")],
)
def test_values_and_gradients_equal_the_dense_reference(scope, activation, terms, block):
    indexer, hidden, query = make(scope, activation, terms=terms)
    lengths = torch.tensor(LENGTHS)
    weights = torch.randn(len(LENGTHS), indexer.shape.rows, max(LENGTHS), dtype=torch.float64)

    fast = indexer.importance(indexer.features(hidden, query), lengths, block)
    fast_loss = (fast * weights).sum()
    fast_gradients = torch.autograd.grad(fast_loss, list(indexer.parameters()))

    slow_loss = torch.zeros((), dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        slow = dense_importance(indexer, hidden[b, :length], query[b, :, :length])
        torch.testing.assert_close(fast[b, :, :length], slow, atol=1e-9, rtol=1e-9)
        assert (fast[b, :, length:] == 0).all()
        slow_loss = slow_loss + (slow * weights[b, :, :length]).sum()
    for fast_gradient, slow_gradient in zip(
        fast_gradients, torch.autograd.grad(slow_loss, list(indexer.parameters())), strict=True
    ):
        torch.testing.assert_close(fast_gradient, slow_gradient, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("terms", TERMS)
def test_inference_gives_the_same_values_without_autograd(terms):
    indexer, hidden, query = make("kv_head", terms=terms)
    lengths = torch.tensor(LENGTHS)
    with torch.no_grad():
        without = indexer(hidden, query, lengths)
    torch.testing.assert_close(without, indexer(hidden, query, lengths).detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize("terms", TERMS)
def test_padding_content_plays_no_part(terms):
    indexer, hidden, query = make("kv_head", terms=terms)
    lengths = torch.tensor(LENGTHS)
    before = indexer(hidden, query, lengths)
    for b, length in enumerate(LENGTHS):
        hidden[b, length:], query[b, :, length:] = 1e6, -1e6
    torch.testing.assert_close(indexer(hidden, query, lengths), before, atol=0, rtol=0)


def test_fp32_stays_close_to_fp64():
    single, hidden, query = make("layer", dtype=torch.float32)
    lengths = torch.tensor(LENGTHS)
    fast = single(hidden, query, lengths)
    double = single.double()(hidden.double(), query.double(), lengths)
    torch.testing.assert_close(fast.double(), double, atol=1e-5, rtol=1e-4)


def test_causal_max_gives_the_earliest_winner_and_no_future():
    scores = torch.tensor([[0.0, 9.0, 9.0], [1.0, 2.0, 9.0], [1.0, 3.0, 4.0]]).view(1, 1, 3, 3)
    for block in (1, 2, 3):
        values, winners = causal_max(lambda a, b: scores[:, :, a:b, :b].clone(), torch.tensor([3]), 1, block)
        assert values.flatten().tolist() == [1.0, 3.0, 4.0]
        assert winners.flatten().tolist() == [1, 2, 2]


@pytest.mark.parametrize("block", [1, 2, 3])
@pytest.mark.parametrize("row", [0, 1, 2])
def test_causal_max_keeps_nan(row, block):
    """Else scores of NaN weights look like numbers, and a guard against NaN sees nothing."""
    scores = torch.zeros(1, 1, 3, 3)
    scores[..., row, 0] = float("nan")
    values, _ = causal_max(lambda a, b: scores[:, :, a:b, :b].clone(), torch.tensor([3]), 1, block)
    assert values.isnan().flatten().tolist() == [True, False, False]


def test_parameter_count_of_the_paper():
    """Llama-3.1-8B: 622,592 a layer, 19,922,944 in all (paper section 4: 19.92M)."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    )
    geometry = Geometry.of(config)
    with torch.device("meta"):
        indexers = IndexerStack(
            IndexerShape.of(IndexerConfig(scope="layer", pair_term=True, token_term=0), geometry), geometry
        )
    assert indexers.parameter_count == 19_922_944
    assert sum(p.numel() for p in indexers[0].parameters()) == 622_592


def test_parameter_counts_of_the_terms():
    """Llama-3.1-8B, a score row for each of 8 KV heads: the token term is 4096 x 128 + 128 and 128 x 8 + 8."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    )
    geometry = Geometry.of(config)

    def count(**settings):
        with torch.device("meta"):
            return IndexerStack(IndexerShape.of(IndexerConfig(**settings), geometry), geometry).parameter_count

    pairs = 4096 * 8 * 8 * 16 + 4096 * 16 + 4096 * 8 * 8
    assert count(pair_term=True, token_term=0) == pairs
    assert count() == 524_416 + 1_032 == 525_448, "the default is the term of the token alone"
    assert count(pair_term=True) == pairs + 524_416 + 1_032


def test_a_checkpoint_of_before_there_were_terms_scores_the_same_bit_for_bit(tmp_path):
    geometry = Geometry.of(tiny_config("llama"))
    torch.manual_seed(0)
    indexers = IndexerStack(IndexerShape.of(IndexerConfig(pair_term=True, token_term=0), geometry), geometry)
    path = save_modules({"indexer": indexers}, tmp_path / "old") / "config.json"
    config = json.loads(path.read_text())
    shape = config["modules"]["indexer"]["shape"]
    assert (shape.pop("pair_term"), shape.pop("token_term")) == (True, 0)
    path.write_text(json.dumps(config))
    loaded = IndexerStack.load(tmp_path / "old")
    assert loaded.shape == indexers.shape
    hidden, query, lengths = torch.randn(2, 20, 48), torch.randn(2, 4, 20, 16), torch.tensor([20, 9])
    for ours, theirs in zip(loaded, indexers, strict=True):
        # As it was: the best pair, nothing added.
        features = theirs.features(hidden, query)
        best, _ = causal_max(lambda a, b, i=theirs, f=features: i.score_rows(f, a, b), lengths, 2)
        with torch.no_grad():
            scores = ours(hidden, query, lengths)
        for row, length in enumerate(lengths):
            assert torch.equal(scores[row, :, :length], best[row, :, :length])
    trained = {"indexer": {"scope": "kv_head"}, "target": {"source": "logprobs"}}  # what such a checkpoint says
    assert trained_share(trained, rows=2) == "head"


@pytest.mark.parametrize("name", shipped_modules())
def test_shipped_modules_are_as_trained_by_default(name):
    folder = modules_folder(name)
    config = read_config(folder)
    indexers = IndexerStack.load(folder)
    assert (indexers.shape.pair_term, indexers.shape.token_term) == (False, 128)
    assert indexers.parameter_count == config["modules"]["indexer"]["parameters"]
    assert trained_share(config["trained"], indexers.shape.rows) == "model"


def test_checkpoints_from_before_the_terms_had_names_hold_pairs_and_evict_per_head(tmp_path):
    """Their shapes and records lack what came later."""
    geometry = Geometry.of(tiny_config("llama"))
    before = IndexerConfig(pair_term=True, token_term=0)
    indexers = IndexerStack(IndexerShape.of(before, geometry), geometry)
    folder = save_modules({"indexer": indexers}, tmp_path, {"target": {"source": "logprobs"}})
    config = json.loads((folder / "config.json").read_text())
    for later in ("pair_term", "token_term"):
        del config["modules"]["indexer"]["shape"][later]
    (folder / "config.json").write_text(json.dumps(config))
    loaded = IndexerStack.load(folder)
    assert loaded.shape == indexers.shape
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), indexers.parameters(), strict=True))
    assert trained_share(read_config(folder)["trained"], loaded.shape.rows) == "head"


@pytest.mark.parametrize("terms", TERMS)
def test_checkpoint_round_trip_and_foreign_geometry(tmp_path, terms):
    geometry = Geometry.of(tiny_config("llama"))
    indexers = IndexerStack(IndexerShape.of(IndexerConfig(**TERMS[terms]), geometry), geometry)
    save_modules({"indexer": indexers}, tmp_path / "a", {"step": 3})
    loaded = IndexerStack.load(tmp_path / "a")
    assert loaded.shape == indexers.shape
    assert loaded.state_dict().keys() == indexers.state_dict().keys()
    for name, tensor in indexers.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    first = weights_hash(tmp_path / "a", "indexer")
    with torch.no_grad():
        next(indexers.parameters()).view(-1)[0] += 1
    save_modules({"indexer": indexers}, tmp_path / "b", {"step": 3})
    assert weights_hash(tmp_path / "b", "indexer") != first
    other = Geometry.of(tiny_config("llama", num_hidden_layers=5, head_dim=8))
    with pytest.raises(UserError, match=r"layers: trained for 3, model has 5; head_dim: trained for 16, model has 8"):
        check_geometry(tmp_path / "a", other)
    with pytest.raises(UserError, match="not a checkpoint of trained modules"):
        IndexerStack.load(tmp_path)
