"""Compression while decoding: budgets hold, rows stay independent, kept tokens equal a slow reference."""

from dataclasses import replace

import pytest
import torch
from method_zoo import every_method
from tiny_models import VOCABULARY, random_ids, tiny_backbone
from torch.nn import functional as F

from indexmem.config.modules import IndexerConfig, MemoryConfig, module_name
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.lanes import ALIGN
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression, Recompression
from indexmem.engine.steps import Steps
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import ACTIVATIONS, NORM_EPS, IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.slots import SlotMemory
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.decode_scorer import CachedTokens
from indexmem.eviction.methods.names import DECODING
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.ranking import rank
from indexmem.models.attention import tapping

PLENTY = 2**34
BUDGET, EVERY, WINDOW, SINKS = 48, 16, 8, 4
CONFIG = EvictionConfig(decode_budget=BUDGET, decode_every=EVERY, decode_window=WINDOW, sinks=SINKS)
NAMES = (*DECODING, "indexer+memory", "snapkv+memory")


def checkpoint_of(geometry, folder, *, share_every=1, scope="kv_head", rotary="post") -> str:
    torch.manual_seed(1)
    config = IndexerConfig(share_every=share_every, scope=scope, pair_term=True, heads=2, dim=4, token_term=0)
    modules = {"indexer": IndexerStack(IndexerShape.of(config, geometry), geometry)}
    for base in ("indexer", "snapkv"):
        shape = MemoryShape.of(MemoryConfig(dim=6, rotary=rotary), geometry)
        modules[module_name(base)] = MemoryStack(shape, geometry)
    return str(save_modules(modules, folder))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return checkpoint_of(tiny_backbone().geometry, tmp_path_factory.mktemp("modules"))


def method_named(name, checkpoint):
    params = {"window_size": 12} if name.startswith("snapkv") else {}
    return make_method(
        MethodConfig(name=name, params=params), MethodContext(tiny_backbone().geometry, "cpu", checkpoint)
    )


def rows_for(methods, config, lengths=(90, 60), ratios=(0.2, 0.7), limits=(60, 25)) -> list[DecodeRow]:
    """Ragged in kept tokens, question and limit."""
    rows = []
    for sample, (length, limit) in enumerate(zip(lengths, limits)):
        done = prefill(tiny_backbone(), random_ids(length, seed=sample), methods, sinks=SINKS)
        question = random_ids(5 + 9 * sample, seed=10 + sample)
        assert not done.errors
        for name, method in methods.items():
            for ratio in ratios:
                budget = config.decode_budget if config else None
                cache = method.compress(
                    done.context, [r[:, :budget] for r in done.rankings_HL[name]], done.context.tokens * (1 - ratio)
                )
                compression = Compression(method, config.decode_budget, config) if config else None
                rows.append(DecodeRow(cache, length, question, limit, compression))
    return rows


@pytest.fixture
def no_end(monkeypatch):
    """Answers run to their limit."""
    monkeypatch.setattr(tiny_backbone().model.generation_config, "eos_token_id", [])


@pytest.fixture
def watched(monkeypatch):
    """Cache lengths [layers, lanes] after every step, and the caches."""
    seen = []
    real = Steps.feed

    def feed(self, *args):
        out = real(self, *args)
        seen.append((self._cache, self._cache.lengths()))
        return out

    monkeypatch.setattr(Steps, "feed", feed)
    return seen


def test_the_registry_names_the_methods_that_can(tmp_path):
    methods = every_method(tiny_backbone().geometry, tmp_path)
    assert {name for name, method in methods.items() if method.decode_scorer([])} == set(DECODING)


def test_no_cache_ever_exceeds_budget_and_interval(checkpoint, watched, no_end):
    methods = {name: method_named(name, checkpoint) for name in NAMES}
    rows = rows_for(methods, CONFIG, limits=(230, 40))
    answers = decode(tiny_backbone(), rows, PLENTY)
    assert {len(a.token_ids) for a in answers} == {230, 40}
    lengths = [lengths for _, lengths in watched]
    assert len(lengths) == 230
    assert max(int(x.max()) for x in lengths[1:]) == BUDGET + EVERY
    assert int(lengths[0].max()) <= BUDGET + 14, "the question comes on top"
    assert all(int(x.min()) >= BUDGET for x in lengths[80:]), "and it is used"
    cache = watched[-1][0]
    lanes = cache.lengths().shape[1]
    most = lanes * (BUDGET + ALIGN + EVERY + 14 + ALIGN)
    assert all(len(keys_Cd) <= most for keys_Cd, _ in cache.stored), "buffers do not grow with the answer"


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_that_never_binds_changes_nothing(name, checkpoint, no_end):
    methods = {name: method_named(name, checkpoint)}
    large = CONFIG.model_copy(update={"decode_budget": 10_000})
    plain = [a.token_ids for a in decode(tiny_backbone(), rows_for(methods, None), PLENTY)]
    assert [a.token_ids for a in decode(tiny_backbone(), rows_for(methods, large), PLENTY)] == plain
    assert [a.token_ids for a in decode(tiny_backbone(), rows_for(methods, CONFIG), PLENTY)] != plain


def test_rows_of_one_batch_keep_their_own_budgets(checkpoint, varied):
    methods = {name: method_named(name, checkpoint) for name in ("knorm", "indexer+memory")}
    rows = [
        replace(row, compression=replace(row.compression, budget=budget))
        for row, budget in zip(rows_for(methods, CONFIG, ratios=(0.7,)), (32, 48, 24, 40), strict=True)
    ]
    together = decode(tiny_backbone(), rows, PLENTY)
    assert {answer.batch for answer in together} == {4}
    alone = [decode(tiny_backbone(), [row], PLENTY)[0] for row in rows]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    assert [answer.held_max for answer in together] == [answer.held_max for answer in alone]
    assert [answer.held_max <= row.compression.budget + EVERY for row, answer in zip(rows, together)] == [True] * 4


@pytest.fixture
def varied(monkeypatch):
    """Answers that depend on every argmax and yet hardly repeat a token: equal tokens have equal key norms, and which
    of them stays is then decided by rounding."""
    offset_T = torch.tensor(random_ids(VOCABULARY - 2, seed=5))
    real = Steps.feed

    def feed(self, ids_Rn, positions_Rn, valid_Rn):
        chosen_R = real(self, ids_Rn, positions_Rn, valid_Rn)
        return (chosen_R + offset_T[positions_Rn[:, -1]]) % (VOCABULARY - 2) + 2

    monkeypatch.setattr(Steps, "feed", feed)


def test_a_batch_gives_what_each_row_gives_alone(checkpoint, varied):
    methods = {name: method_named(name, checkpoint) for name in NAMES}
    rows = rows_for(methods, CONFIG)
    rows += rows_for({"knorm": methods["knorm"]}, None)  # rows without compression go beside them
    together = decode(tiny_backbone(), rows, PLENTY)
    assert [a.token_ids for a in together] == [decode(tiny_backbone(), [row], PLENTY)[0].token_ids for row in rows]
    assert len({tuple(a.token_ids) for a in together}) > 6


@pytest.mark.parametrize("name", [name for name in DECODING if name != "random"])
def test_with_everything_observed_the_scores_are_those_of_prefill(name, checkpoint):
    """One compression right after a prefill that the scorer saw whole: the ranking is the method's own."""
    method, backbone, length = method_named(name, checkpoint), tiny_backbone(), 70
    taps = []
    with torch.inference_mode(), tapping(backbone.model, taps.append) as kwargs:
        backbone.model(torch.tensor([random_ids(length)]), use_cache=False, **kwargs)
    done = prefill(backbone, random_ids(length), {name: method}, sinks=0)
    nothing = method.compress(done.context, [r[:, :0] for r in done.rankings_HL[name]], done.context.tokens)
    scorer = method.decode_scorer([nothing])
    for tap in taps:
        scorer.observe(tap, torch.tensor([0]), torch.ones(1, length, dtype=torch.bool))
    scorer.begin_compression()
    for tap in taps:
        position_HT = torch.arange(length).expand(2, -1)
        ours = scorer.score(CachedTokens(0, tap.layer, tap.key_BHLd[0], position_HT, tap.scaling))
        theirs = method.score(tap)[0].float()
        protected = ours > 1e30  # by other numbers than at prefill, but in the same order
        assert bool(protected.any()) == (name in ("snapkv", "tova", "streaming_llm"))
        torch.testing.assert_close(ours[~protected], theirs[~protected], atol=1e-5, rtol=1e-4)
        first = int(protected[0].sum())
        assert torch.equal(rank(ours, 0)[:, :first], rank(theirs, 0)[:, :first])


def slow_kept(indexer, hidden_SD, query_pre_SQd, key_GTi, position_GT, first_query):
    """The indexer's rule in fp64, one score at a time: positions that stay."""
    shape = indexer.shape
    act = ACTIVATIONS[shape.activation]
    norm = lambda x: x / (x.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()  # noqa: E731
    q = norm(
        (query_pre_SQd.double().flatten(1) @ indexer.q_proj.weight.double().T).view(
            -1, shape.rows, shape.heads, shape.dim
        )
    )
    alpha = (hidden_SD.double() @ indexer.gate.weight.double().T).view(-1, shape.rows, shape.heads)
    kept = []
    for g in range(shape.rows):
        best = []
        for t, position in enumerate(position_GT[g].tolist()):
            scores = [
                sum(
                    float(alpha[s, g, h] * act(q[s, g, h] @ key_GTi[g, t].double())) / (shape.heads * shape.dim) ** 0.5
                    for h in range(shape.heads)
                )
                for s in range(len(q))
                if first_query + s >= position
            ]
            newest = position_GT[g].max()
            best.append(float("inf") if position < SINKS or position > newest - WINDOW else max(scores))
        order = sorted(range(len(best)), key=lambda t: -best[t])[:BUDGET]
        kept.append(sorted(position_GT[g, t].item() for t in order))
    return kept


@pytest.mark.parametrize(("scope", "share_every"), [("kv_head", 1), ("layer", 1), ("kv_head", 2)])
def test_kept_tokens_equal_a_slow_reference(scope, share_every, tmp_path, monkeypatch, no_end):
    backbone = tiny_backbone()
    method = method_named("indexer", checkpoint_of(backbone.geometry, tmp_path, share_every=share_every, scope=scope))
    [row] = rows_for({"indexer": method}, CONFIG, lengths=(90,), ratios=(0.2,), limits=(50,))
    steps, compressions = [], []
    observe, compress = Recompression._observe, Recompression.compress

    def watching(self, tap):
        steps.append((tap.layer, tap.hidden_BLD[0], tap.query_pre_BQLd[0].transpose(0, 1)))
        observe(self, tap)

    def noting(self, remaining):
        before = [layer.position_HT.clone() for layer in self._held[0]]
        compress(self, remaining)
        compressions.append((len(steps), before, [layer.position_HT.clone() for layer in self._held[0]]))

    monkeypatch.setattr(Recompression, "_observe", watching)
    monkeypatch.setattr(Recompression, "compress", noting)
    decode(backbone, [row], PLENTY)
    assert len(compressions) == 4

    context = random_ids(90, seed=0)
    hidden_by_layer: dict[int, torch.Tensor] = {}
    with (
        torch.inference_mode(),
        tapping(backbone.model, lambda t: hidden_by_layer.update({t.layer: t.hidden_BLD[0]})) as kw,
    ):
        backbone.model(torch.tensor([context]), use_cache=False, **kw)
    since = 0
    now = 90
    for stop, before, after in compressions:
        interval = steps[since:stop]
        new = sum(hidden.shape[0] for layer, hidden, _ in interval if layer == 0)
        for layer in range(backbone.geometry.layers):
            owner = layer - layer % share_every
            indexer = method.indexers.owned_by(owner)
            hidden = torch.cat([hidden for at, hidden, _ in interval if at == owner])
            query = torch.cat([query for at, _, query in interval if at == owner])
            if before[layer].shape[1] + new <= BUDGET:
                continue
            everything = torch.cat([hidden_by_layer[owner]] + [h for at, h, _ in steps[:stop] if at == owner])
            all_keys = (
                F.normalize((everything.double() @ indexer.k_proj.weight.double().T), dim=-1) * indexer.shape.dim**0.5
            )
            fresh = torch.arange(now, now + new).expand(2, -1)
            position = torch.cat((before[layer], fresh), 1)
            rows = indexer.shape.rows
            kept = slow_kept(indexer, hidden, query, all_keys[position[:rows]], position[:rows], now)
            assert after[layer][:rows].tolist() == kept
            assert after[layer].tolist() == (kept if rows == 2 else kept * 2)
        since, now = stop, now + new


@pytest.mark.parametrize(("scope", "share_every"), [("kv_head", 1), ("layer", 2)])
def test_indexer_keys_cost_the_bytes_that_rows_report(scope, share_every, tmp_path):
    geometry = tiny_backbone().geometry
    method = method_named("indexer", checkpoint_of(geometry, tmp_path, share_every=share_every, scope=scope))
    caches = [row.cache for row in rows_for({"indexer": method}, CONFIG)]
    assert method.decode_scorer(caches).key_bytes == sum(cache.indexer_bytes for cache in caches) > 0


@pytest.mark.parametrize("rotary", ["post", "pre"])
def test_memory_mass_is_the_number_of_evicted_tokens(rotary, tmp_path, watched, no_end):
    method = method_named("indexer+memory", checkpoint_of(tiny_backbone().geometry, tmp_path, rotary=rotary))
    for row in rows_for({"indexer+memory": method}, CONFIG, limits=(60, 60)):
        decode(tiny_backbone(), [row], PLENTY)
        cache, lengths = watched[-1]
        seen = row.context_tokens + len(row.question_ids) + row.max_new_tokens - 1
        for layer, [group] in enumerate(cache.memories._groups):
            mass_H = group.state.tensors["mass"][0].sum(-1)
            assert seen > lengths[layer, 0]
            torch.testing.assert_close(mass_H, torch.full_like(mass_H, float(seen - lengths[layer, 0])))


@pytest.mark.parametrize("rotary", ["post", "pre"])
def test_memories_get_keys_as_their_shape_says(rotary, tmp_path, monkeypatch, no_end):
    """Before RoPE a key of the first layer depends on its token alone."""
    backbone = tiny_backbone()
    method = method_named("indexer+memory", checkpoint_of(backbone.geometry, tmp_path, rotary=rotary))
    [row] = rows_for({"indexer+memory": method}, CONFIG, lengths=(90,), ratios=(0.2,), limits=(60,))
    written = []
    write = SlotMemory.write

    def noting(self, state, evicted):
        if self is method.memories[0]:
            written.append(evicted.key_BHLd[0])
        return write(self, state, evicted)

    monkeypatch.setattr(SlotMemory, "write", noting)
    decode(backbone, [row], PLENTY)
    layer = backbone.model.get_decoder().layers[0]
    vocabulary_VD = layer.input_layernorm(backbone.model.get_decoder().embed_tokens.weight)
    key_HVd = layer.self_attn.k_proj(vocabulary_VD).unflatten(-1, (2, -1)).transpose(0, 1)
    assert len(written) == 4
    for key_HTd in written:
        of_a_token = (torch.cdist(key_HTd.double(), key_HVd.double()).amin(-1) < 1e-3).all()
        assert bool(of_a_token) == (rotary == "pre")


def test_sinks_and_the_most_recent_tokens_stay(checkpoint, monkeypatch, no_end):
    kept = []
    compress = Recompression.compress

    def noting(self, remaining):
        compress(self, remaining)
        kept.append([[layer.position_HT.clone() for layer in row] for row in self._held])

    monkeypatch.setattr(Recompression, "compress", noting)
    methods = {name: method_named(name, checkpoint) for name in ("knorm", "indexer", "snapkv")}
    decode(tiny_backbone(), rows_for(methods, CONFIG, limits=(100, 100)), PLENTY)
    for rows in kept[4:]:
        for layers in rows:
            for position_HK in layers:
                assert position_HK.shape[1] == BUDGET
                newest = int(position_HK[0, -1])
                for head in position_HK.tolist():
                    assert head == sorted(set(head))
                    assert set(range(SINKS)) <= set(head)
                    assert set(range(newest - WINDOW + 1, newest + 1)) <= set(head)
