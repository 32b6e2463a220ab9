"""Heads that share a budget while decoding: kept tokens equal a slow reference, budgets hold, nothing is lost."""

from collections import defaultdict

import pytest
import torch
from masked_reference import assert_greedy, gone_after_prefill
from tiny_models import VOCABULARY, random_ids, tiny_backbone

from indexmem.config.modules import IndexerConfig, MemoryConfig, module_name
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression, Recompression
from indexmem.engine.steps import Steps
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import ACTIVATIONS, NORM_EPS, IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import tapping

PLENTY = 2**34
BUDGET, EVERY, WINDOW, SINKS, FLOOR = 40, 16, 6, 4, 0.5
CONFIG = EvictionConfig(decode_budget=BUDGET, decode_every=EVERY, decode_window=WINDOW, sinks=SINKS)
LAYERS, HEADS = 3, 2
SNAPKV = {"window_size": 12, "kernel_size": 5}


def checkpoint_of(folder, pair_term=True, **settings) -> str:
    torch.manual_seed(1)
    geometry = tiny_backbone().geometry
    pairs = {"pair_term": True, "heads": 2, "dim": 4} if pair_term else {"pair_term": False}
    config = IndexerConfig(**pairs | {"token_term": 6} | settings)
    modules = {"indexer": IndexerStack(IndexerShape.of(config, geometry), geometry)}
    for base in ("indexer", "knorm"):
        shape = MemoryShape.of(MemoryConfig(dim=6), geometry)
        modules[module_name(base)] = MemoryStack(shape, geometry)
    return str(save_modules(modules, folder))


def method_named(name, across, folder, floor=FLOOR):
    params = (SNAPKV if name.startswith("snapkv") else {}) | {"share": across}
    params |= {} if across == "head" else {"floor": floor}
    return make_method(MethodConfig(name=name, params=params), MethodContext(tiny_backbone().geometry, "cpu", folder))


def rows_for(methods, lengths=(90, 60), limits=(45, 20), ratios=(0.3, 0.7)) -> list[DecodeRow]:
    """Ragged in kept tokens, question and limit; what prefill keeps is within the budget."""
    rows = []
    for sample, (length, limit) in enumerate(zip(lengths, limits)):
        labelled = {str(number): method for number, method in enumerate(methods)}
        done = prefill(tiny_backbone(), random_ids(length, seed=sample), labelled, sinks=SINKS)
        assert not done.errors, done.errors
        for label, method in labelled.items():
            for ratio in ratios:
                target = min(length * (1 - ratio), BUDGET)
                cache = method.compress(done.context, done.rankings_HL[label], target)
                question = random_ids(5 + 4 * sample, seed=10 + sample)
                rows.append(DecodeRow(cache, length, question, limit, Compression(method, BUDGET, CONFIG)))
    return rows


@pytest.fixture(autouse=True)
def no_end(monkeypatch):
    """Answers run to their limit."""
    monkeypatch.setattr(tiny_backbone().model.generation_config, "eos_token_id", [])


@pytest.fixture
def varied(monkeypatch):
    """Answers that hardly repeat a token: equal tokens have equal key norms, and rounding then decides which stays."""
    offset_T = torch.tensor(random_ids(VOCABULARY - 2, seed=5))
    feed = Steps.feed

    def feeding(self, ids_Rn, positions_Rn, valid_Rn):
        chosen_R = feed(self, ids_Rn, positions_Rn, valid_Rn)
        return (chosen_R + offset_T[positions_Rn[:, -1]]) % (VOCABULARY - 2) + 2

    monkeypatch.setattr(Steps, "feed", feeding)


@pytest.fixture
def seen(monkeypatch):
    """What the model computed for each row and layer, and what was held after each compression, by the row's number."""
    record = {"taps": defaultdict(list), "held": [], "rows": []}
    observe, compress, select = Recompression._observe, Recompression.compress, Recompression.select

    def observing(self, tap):
        observe(self, tap)
        if not record["rows"]:
            record["rows"] = list(range(len(self._held)))
        for place, row in enumerate(record["rows"]):
            valid = self.cache.newest_valid_Rn[place]
            record["taps"][row, tap.layer].append(
                (
                    tap.hidden_BLD[place][valid].double(),
                    tap.query_pre_BQLd[place][:, valid].double(),
                    tap.query_BQLd[place][:, valid].double(),
                    tap.key_BHLd[place][:, valid].double(),
                )
            )

    def compressing(self, remaining):
        compress(self, remaining)
        fed = {row: sum(len(hidden) for hidden, *_ in record["taps"][row, 0]) for row in record["rows"]}
        held = {
            row: [
                [head[len(head) - count :] for head, count in zip(layer.position_HT.tolist(), layer.lengths_H)]
                for layer in self._held[place]
            ]
            for place, row in enumerate(record["rows"])
        }
        repacked = self.cache.opened.filled == 0
        record["held"].append((fed, held, repacked))

    def selecting(self, rows):
        select(self, rows)
        record["rows"] = [record["rows"][place] for place in rows.tolist()]

    monkeypatch.setattr(Recompression, "_observe", observing)
    monkeypatch.setattr(Recompression, "compress", compressing)
    monkeypatch.setattr(Recompression, "select", selecting)
    return record


class Reference:
    """One row in fp64, one score at a time: what its heads hold after each compression."""

    def __init__(self, row: DecodeRow, context_ids, taps):
        self.method, self.selection, self.taps = row.compression.method, row.compression.method.selection, taps
        self.tokens = row.context_tokens
        hidden, keys = {}, {}

        def visit(tap):
            hidden[tap.layer], keys[tap.layer] = tap.hidden_BLD[0].double(), tap.key_BHLd[0].double()

        with torch.inference_mode(), tapping(tiny_backbone().model, visit) as kwargs:
            tiny_backbone().model(torch.tensor([context_ids]), use_cache=False, **kwargs)
        self.hidden = [torch.cat([hidden[n], *(t[0] for t in taps[n])]) for n in range(LAYERS)]
        self.query_pre = [torch.cat([t[1] for t in taps[n]], dim=1) for n in range(LAYERS)]
        self.query = [torch.cat([t[2] for t in taps[n]], dim=1) for n in range(LAYERS)]
        self.key = [torch.cat([keys[n], *(t[3] for t in taps[n])], dim=1) for n in range(LAYERS)]
        self.held = [
            [row.cache.kept_HK[n][h, : row.cache.lengths(n)[h]].tolist() for h in range(HEADS)] for n in range(LAYERS)
        ]
        self.fed = 0  # queries before this compression's interval

    def compress(self, fed):
        """`fed`: tokens that the model has seen since the context."""
        for layer in self.held:
            for head in layer:
                head += range(self.tokens + self.fed, self.tokens + fed)
        newest = self.tokens + fed - 1
        every = []
        for n in range(LAYERS):
            for h in range(HEADS):
                scores = dict(zip(self.held[n][h], self.scores(n, h, fed)))
                always = {p for p in scores if p < SINKS or p > newest - WINDOW}
                order = sorted(scores, key=lambda p: (-float("inf") if p in always else -scores[p], p))
                sure = always | set(order[: max(SINKS + WINDOW, int(self.selection.floor * BUDGET))])
                every += [((0 if p in sure else 1), 0 if p in sure else -scores[p], p, n, h) for p in scores]
        if self.selection.across == "model":
            stays = set(sorted(every)[: LAYERS * HEADS * BUDGET])
        else:
            stays = {x for n in range(LAYERS) for x in sorted(y for y in every if y[3] == n)[: HEADS * BUDGET]}
        kept = [[sorted(p for _, _, p, m, g in stays if (m, g) == (n, h)) for h in range(HEADS)] for n in range(LAYERS)]
        for first in range(0, LAYERS, self.selection.alike):
            group = range(first, min(LAYERS, first + self.selection.alike))
            for h in range(HEADS):
                common = sorted(set.intersection(*(set(kept[n][h]) for n in group)))
                for n in group:
                    kept[n][h] = list(common)
        self.held, self.fed = kept, fed

    def scores(self, n, h, fed):
        positions = self.held[n][h]
        key = self.key[n][h]
        return getattr(self, self.name)(n, h, positions, key, fed)

    def knorm(self, n, h, positions, key, fed):
        return [-float(key[p].norm()) for p in positions]

    def keydiff(self, n, h, positions, key, fed):
        unit = {p: key[p] / key[p].norm() for p in positions}
        anchor = sum(unit.values()) / len(positions)
        return [-float(unit[p] @ anchor / anchor.norm()) for p in positions]

    def snapkv(self, n, h, positions, key, fed):
        first = max(0, fed - SNAPKV["window_size"])
        total = dict.fromkeys(positions, 0.0)
        scale = key.shape[-1] ** -0.5
        for s in range(first, fed):
            for q in range(2 * h, 2 * h + 2):
                sees = [p for p in positions if p <= self.tokens + s]
                weight = torch.stack([self.query[n][q, s] @ key[p] * scale for p in sees]).softmax(0)
                for p, w in zip(sees, weight.tolist()):
                    total[p] += w / (2 * (fed - first))
        inside = [0.0 if p >= self.tokens + first else total[p] for p in positions]
        side = SNAPKV["kernel_size"] // 2
        pooled = [sum(inside[max(0, i - side) : i + side + 1]) / SNAPKV["kernel_size"] for i in range(len(inside))]
        return [1e30 if p >= self.tokens + first else x for p, x in zip(positions, pooled)]

    def indexer(self, n, h, positions, key, fed):
        n -= n % self.method.layers_alike
        indexer = self.method.indexers.owned_by(n)
        shape, weights = indexer.shape, {k: v.double() for k, v in indexer.state_dict().items()}
        hidden = self.hidden[n]
        found = [0.0] * len(positions)
        if shape.pair_term:
            norm = lambda x: x / (x.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()  # noqa: E731
            queries = range(self.fed, fed)
            pre = self.query_pre[n][:, self.fed : fed].transpose(0, 1).flatten(1)
            q = norm((pre @ weights["q_proj.weight"].T).unflatten(-1, (shape.rows, shape.heads, shape.dim)))
            asking = hidden[self.tokens + self.fed : self.tokens + fed]
            alpha = (asking @ weights["gate.weight"].T).unflatten(-1, (shape.rows, shape.heads))
            alpha = alpha / (shape.heads * shape.dim) ** 0.5
            k = norm(hidden @ weights["k_proj.weight"].T)
            act = ACTIVATIONS[shape.activation]
            for i, p in enumerate(positions):
                found[i] = max(
                    sum(float(alpha[s, h, j] * act(q[s, h, j] @ k[p])) for j in range(shape.heads))
                    for s, at in enumerate(queries)
                    if p <= self.tokens + at
                )
        if shape.token_term:
            inner = hidden[positions] @ weights["token.0.weight"].T + weights["token.0.bias"]
            alone = (inner * inner.sigmoid()) @ weights["token.2.weight"].T + weights["token.2.bias"]
            found = [x + float(y) for x, y in zip(found, alone[:, h])]
        return found


def compare(names, across, folder, seen):
    """Decode one batch of all methods; every head's tokens after every compression are the reference's."""
    rows = rows_for([method_named(name, across, folder) for name in names])
    answers = decode(tiny_backbone(), rows, PLENTY)
    assert {answer.batch for answer in answers} == {len(rows)}
    order = sorted(range(len(rows)), key=lambda i: -rows[i].cache.kept_HK[0].shape[1])  # as `decode` sorts a batch
    assert len({len(held) for _, held, _ in seen["held"]}) > 1, "rows finish early"
    uneven = 0
    for place, number in enumerate(order):
        row, context = rows[number], random_ids(rows[number].context_tokens, seed=number // (len(rows) // 2))
        reference = Reference(row, context, {n: seen["taps"][place, n] for n in range(LAYERS)})
        reference.name = names[number % (len(rows) // 2) // 2]
        for fed, held, repacked in seen["held"]:
            if place in held and repacked:
                reference.compress(fed[place])
                assert held[place] == reference.held, (reference.name, fed[place])
                uneven += len({len(head) for layer in held[place] for head in layer}) > 1
    assert uneven > 5, "heads must differ, or this shows nothing"


@pytest.mark.parametrize("across", ["layer", "model"])
def test_kept_tokens_equal_a_slow_reference(across, tmp_path, varied, seen):
    compare(("knorm", "keydiff", "snapkv", "indexer"), across, checkpoint_of(tmp_path), seen)


@pytest.mark.parametrize(
    "settings",
    [{"token_term": 0}, {"pair_term": False}, {"share_every": 2}, {"share_every": 3, "token_term": 0}],
    ids=["pairs", "tokens", "for two layers", "pairs for all layers"],
)
def test_indexers_with_either_term_and_for_several_layers(settings, tmp_path, seen):
    compare(("indexer",), "model", checkpoint_of(tmp_path, **settings), seen)


@pytest.mark.parametrize("across", ["layer", "model"])
@pytest.mark.parametrize("name", ["knorm", "snapkv", "indexer"])
def test_text_equals_attention_with_what_left_masked(name, across, tmp_path, monkeypatch):
    """What a head drops is gone for the queries after it, and for no other."""
    length, limit, question = 90, 60, random_ids(9, seed=4)
    method = method_named(name, across, checkpoint_of(tmp_path))
    done = prefill(tiny_backbone(), random_ids(length), {"m": method}, sinks=SINKS)
    cache = method.compress(done.context, done.rankings_HL["m"], BUDGET)
    total = length + len(question) + limit
    gone = [gone_after_prefill(kept_HK, length, total) for kept_HK in cache.kept_HK]
    keep = Recompression._keep

    def keeping(self, members, chosen, row, layer, key_HTd, value_HTd):
        stays = keep(self, members, chosen, row, layer, key_HTd, value_HTd)
        position_HT = self._held[row][layer].position_HT
        now = int(position_HT[0, -1]) + 1
        dropped_HT = gone[layer] > total
        dropped_HT[:, now:] = False
        gone[layer][dropped_HT.scatter_(1, position_HT, False)] = now
        return stays

    monkeypatch.setattr(Recompression, "_keep", keeping)
    row = DecodeRow(cache, length, question, limit, Compression(method, CONFIG.decode_budget, CONFIG))
    (answer,) = decode(tiny_backbone(), [row], PLENTY)
    assert len(answer.token_ids) == limit
    assert len({position for layer in gone for position in layer.unique().tolist()}) > 4, "several compressions"
    assert_greedy("llama", random_ids(length), question, answer.token_ids, gone)


@pytest.fixture
def watched(monkeypatch):
    """Cache lengths [layers, rows, heads] after every step, and the caches."""
    steps = []
    feed = Steps.feed

    def feeding(self, *args):
        out = feed(self, *args)
        steps.append((self._cache, self._cache.lengths().unflatten(1, (-1, HEADS))))
        return out

    monkeypatch.setattr(Steps, "feed", feeding)
    return steps


@pytest.mark.parametrize("across", ["layer", "model"])
@pytest.mark.parametrize("floor", [0.0, 0.5, 1.0])
def test_the_mean_over_heads_never_exceeds_the_budget_and_an_interval(across, floor, tmp_path, watched, seen):
    folder = checkpoint_of(tmp_path)
    methods = [method_named(name, across, folder, floor) for name in ("knorm", "indexer", "random", "snapkv")]
    decode(tiny_backbone(), rows_for(methods), PLENTY)
    dims = 2 if across == "layer" else (0, 2)
    for _, lengths in watched[1:]:
        assert float(lengths.double().mean(dims).max()) <= BUDGET + EVERY
        assert int(lengths.min()) >= min(int(floor * BUDGET), SINKS + WINDOW)
    least = max(SINKS + WINDOW, int(floor * BUDGET))
    for _, held, _ in seen["held"][2:]:
        for layers in held.values():
            newest = max(layers[0][0])
            for head in (head for layer in layers for head in layer):
                assert len(head) == len(set(head)) >= least
                assert {*range(SINKS), *range(newest - WINDOW + 1, newest + 1)} <= set(head)
    heads = {len(head) for _, held, _ in seen["held"] for layers in held.values() for layer in layers for head in layer}
    assert len(heads) > 10 or floor == 1.0
    most = [float(lengths.double().mean(dims).max()) for _, lengths in watched[1:]]
    assert max(most) > BUDGET + EVERY - 1, "and it is used"


@pytest.mark.parametrize("across", ["head", "layer", "model"])
def test_memory_mass_is_the_number_of_tokens_that_each_head_evicted(across, tmp_path, watched):
    folder = checkpoint_of(tmp_path)
    for name in ("indexer+memory", "knorm+memory"):
        for row in rows_for([method_named(name, across, folder)], limits=(60, 60)):
            decode(tiny_backbone(), [row], PLENTY)
            cache, lengths = watched[-1]
            fed = row.context_tokens + len(row.question_ids) + row.max_new_tokens - 1
            for layer, [group] in enumerate(cache.memories._groups):
                mass_H = group.state.tensors["mass"][0].sum(-1)
                torch.testing.assert_close(mass_H, (fed - lengths[layer, 0]).float())


def test_a_batch_gives_what_each_row_gives_alone(tmp_path, varied):
    folder = checkpoint_of(tmp_path)
    kinds = [
        ("knorm", "head"),
        ("knorm", "model"),
        ("indexer+memory", "model"),
        ("indexer", "head"),
        ("snapkv", "layer"),
    ]
    rows = rows_for([method_named(name, across, folder) for name, across in kinds])
    together = decode(tiny_backbone(), rows, PLENTY)
    assert [a.token_ids for a in together] == [decode(tiny_backbone(), [row], PLENTY)[0].token_ids for row in rows]


@pytest.mark.parametrize("settings", [{}, {"token_term": 0}, {"pair_term": False}, {"share_every": 2}])
@pytest.mark.parametrize("across", ["head", "layer", "model"])
def test_indexer_keys_cost_the_bytes_that_rows_report(across, settings, tmp_path):
    method = method_named("indexer", across, checkpoint_of(tmp_path, **settings))
    caches = [row.cache for row in rows_for([method])]
    scorer = method.decode_scorer(caches)
    numbers = method.indexers.shape.numbers_per_key
    assert numbers == 4 * settings.get("pair_term", True) + (settings.get("token_term", 6) > 0)
    owners = range(0, LAYERS, settings.get("share_every", 1))
    assert scorer.key_bytes == sum(sum(cache.lengths(n)) for cache in caches for n in owners) * numbers * 4
    assert scorer.key_bytes == sum(cache.indexer_bytes for cache in caches)
