"""The indexer's kernel against the fp64 reference: values, winners, and gradients through `Indexer.importance`."""

import pytest
import torch
from dense_reference import dense_importance
from hypothesis import given, settings
from hypothesis import strategies as st

from indexmem.eviction.indexer import Features, Indexer, IndexerShape
from indexmem.eviction.streaming import causal_max
from indexmem.kernels import indexer_max as module
from indexmem.kernels.dispatch import can_run
from indexmem.kernels.indexer_max import indexer_max

HIDDEN, QUERY_HEADS, HEAD_DIM = 24, 4, 6
TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}  # of fp32 sums; products are of the values given, whatever their dtype


def random_features(lengths, rows, heads, dim, dtype, device, seed=0) -> Features:
    """Normalised as the indexer's own, of that dtype, with a gap between tokens: kernels take any strides."""
    torch.manual_seed(seed)
    batch, length = len(lengths), max(lengths)
    norm = torch.nn.functional.rms_norm
    q = norm(torch.randn(batch, length, heads, rows, dim), (dim,)).transpose(2, 3)
    k = norm(torch.randn(batch, length, 2 * dim), (2 * dim,))[..., ::2]
    alpha = torch.randn(batch, rows, length, heads).transpose(1, 2)
    return Features(
        q.to(device, dtype), k.to(device, dtype), alpha.to(device), torch.zeros(batch, rows, length, device=device)
    )


def in_double(features: Features) -> Features:
    return Features(*(x.double().cpu() for x in vars(features).values()))


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=3),
    rows=st.integers(1, 2),
    heads=st.integers(1, 3),
    dim=st.sampled_from([1, 5, 16, 20, 40]),
    activation=st.sampled_from(["relu", "softplus", "identity"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    chunk=st.sampled_from([16, 64, 256]),
)
def test_maxima_and_winners_equal_the_fp64_reference(device, lengths, rows, heads, dim, activation, dtype, chunk):
    features = random_features(lengths, rows, heads, dim, dtype, device)
    indexer, double = Indexer(IndexerShape("kv_head", heads, dim, activation, rows), 8, 8), in_double(features)
    exact, _ = causal_max(lambda start, stop: indexer.score_rows(double, start, stop), torch.tensor(lengths), rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "chunk_of", lambda *_: chunk)
        best, winner = indexer_max(
            features.q_BSGHi, features.k_BTi, features.alpha_BSGH, torch.tensor(lengths).to(device), activation
        )
    best, winner = best.cpu(), winner.cpu()
    torch.testing.assert_close(best.double(), exact, **TOLERANCE)
    positions = torch.arange(max(lengths))
    real = (positions < torch.tensor(lengths)[:, None])[:, None].expand_as(best)
    last = torch.tensor(lengths)[:, None, None].expand_as(best) - 1
    assert torch.equal(best.isfinite(), real)
    assert torch.equal(winner[~real], positions.expand_as(winner)[~real])
    assert bool((winner >= positions).all()) and bool((winner <= last)[real].all())
    torch.testing.assert_close(indexer._winning_scores(double, winner)[real], exact[real], **TOLERANCE)


@pytest.mark.parametrize("chunk", [16, 256])
def test_ties_go_to_the_earliest_query(device, monkeypatch, chunk):
    """Equal scores within a tile, across tiles and across chunks; some keys' best is the first query, some a later."""
    monkeypatch.setattr(module, "chunk_of", lambda *_: chunk)
    length = 200
    q = torch.ones(1, length, 1, 1, 4, device=device)
    alpha = torch.ones(1, length, 1, 1, device=device)
    alpha[:, [3, 70, 71, 150, 190]] = 2.0
    _, winner = indexer_max(
        q, torch.ones(1, length, 4, device=device), alpha, torch.tensor([length], device=device), "relu"
    )
    expected = [next((s for s in (3, 70, 71, 150, 190) if s >= t), t) for t in range(length)]
    assert winner.flatten().tolist() == expected


@pytest.mark.parametrize("scope", ["layer", "kv_head"])
@pytest.mark.parametrize("activation", ["relu", "softplus", "identity"])
def test_importance_and_its_gradients_equal_the_fp64_reference(device, scope, activation):
    torch.manual_seed(0)
    lengths = (90, 41, 1)
    shape = IndexerShape(scope, heads=3, dim=5, activation=activation, rows=2 if scope == "kv_head" else 1)
    double = Indexer(shape, HIDDEN, QUERY_HEADS * HEAD_DIM).double()
    hidden = torch.randn(len(lengths), max(lengths), HIDDEN, dtype=torch.float64)
    query = torch.randn(len(lengths), QUERY_HEADS, max(lengths), HEAD_DIM, dtype=torch.float64)
    weights = torch.randn(len(lengths), shape.rows, max(lengths), dtype=torch.float64)
    slow = [dense_importance(double, hidden[b, :n], query[b, :, :n]) for b, n in enumerate(lengths)]
    loss = sum((values * weights[b, :, :n]).sum() for b, (values, n) in enumerate(zip(slow, lengths)))
    slow_gradients = torch.autograd.grad(loss, list(double.parameters()))

    single = Indexer(shape, HIDDEN, QUERY_HEADS * HEAD_DIM)
    single.load_state_dict(double.state_dict())
    single.to(device)
    features = single.features(hidden.float().to(device), query.float().to(device))
    assert can_run(features.q_BSGHi, features.k_BTi), "or another route is tested"
    fast = single.importance(features, torch.tensor(lengths).to(device))
    gradients = torch.autograd.grad((fast * weights.float().to(device)).sum(), list(single.parameters()))
    for b, n in enumerate(lengths):
        torch.testing.assert_close(fast[b, :, :n].detach().double().cpu(), slow[b].detach(), atol=1e-4, rtol=1e-4)
        assert bool((fast[b, :, n:] == 0).all())
    for found, exact in zip(gradients, slow_gradients, strict=True):
        torch.testing.assert_close(found.double().cpu(), exact, atol=1e-3, rtol=1e-3)


def test_padding_content_plays_no_part(device):
    features = random_features((130, 50), 2, 2, 16, torch.float32, device)
    lengths = torch.tensor((130, 50), device=device)
    before = indexer_max(features.q_BSGHi, features.k_BTi, features.alpha_BSGH, lengths, "relu")
    for values in (features.q_BSGHi, features.k_BTi, features.alpha_BSGH):
        values[1, 50:] = torch.nan
    after = indexer_max(features.q_BSGHi, features.k_BTi, features.alpha_BSGH, lengths, "relu")
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


@pytest.mark.parametrize("products", [torch.float16, torch.bfloat16])
def test_rounded_products_cost_winners_that_are_near_ties_only(device, products):
    """Why `score_products` is harmless: a wrong winner scores almost as much, and values and gradients are its own."""
    lengths, heads, dim = (300,), 4, 16
    features = random_features(lengths, 1, heads, dim, torch.float32, device)
    indexer, lengths_B = Indexer(IndexerShape("layer", heads, dim, "relu", 1), 8, 8), torch.tensor(lengths).to(device)
    with torch.no_grad():
        exact, winner = indexer._maxima(features, lengths_B, None, None)
        rounded = indexer.importance(features, lengths_B, products=products)
        _, near = indexer._maxima(features, lengths_B, None, products)
    step = torch.finfo(products).eps / 2
    # |z| <= dim; q and k are each off by `step` of themselves, at the winner and at what it beat.
    bound = 2 * (2 * step * dim) * features.alpha_BSGH.abs().sum(-1).max()
    assert bool((rounded <= exact + 1e-5).all()) and bool((rounded >= exact - bound).all())
    assert (near == winner).float().mean() > {torch.float16: 0.98, torch.bfloat16: 0.9}[products]
    torch.testing.assert_close(rounded, indexer._winning_scores(features, near))


def test_kernels_take_tensors_of_one_dtype_that_they_know(device):
    half, single = torch.zeros(2, device=device, dtype=torch.bfloat16), torch.zeros(2, device=device)
    assert can_run(half, half) and can_run(single)
    assert not can_run(single, half)
    assert not can_run(single.double())
