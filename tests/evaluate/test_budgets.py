"""A budget means the same to every method: tokens and bytes granted, measured afterwards, refused where impossible."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvpress import PyramidKVPress
from kvpress.presses.scorer_press import compute_n_kept
from method_zoo import every_method
from tiny_models import VOCABULARY, random_ids, save_tiny_model, tiny_backbone, tiny_model

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.load import validate
from indexmem.config.modules import IndexerConfig, MemoryConfig
from indexmem.config.schema import EvictionConfig, GridConfig, MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.compress import compress_cells
from indexmem.evaluate.grid import _cells, plan
from indexmem.evaluate.settings import check_budgets
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.context import RowCache
from indexmem.eviction.footprint import BudgetError, Footprint, check_bytes, check_kept
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.eviction.memory.base import MemoryShape
from indexmem.eviction.memory.stack import MemoryStack
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.kvpress_scores import PyramidKV
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.methods.simple import FullCache, Random
from indexmem.eviction.selection import PerHead
from indexmem.models.geometry import Geometry

LENGTH = 150
TOKEN = 3 * 2 * 2 * 16 * 4  # bytes of a token: three layers, K and V, two heads, head_dim 16, fp32
KEYS = 2 * 2 * (4 + 1) * 4  # bytes of its indexer keys: two indexers, two heads, dim 4 and a token term, fp32
METHODS = ("indexer", "indexmem", "snapkv", "pyramidkv", "adakv", "knorm", "xkv")


def checkpoint_of(geometry: Geometry, folder, share_every: int = 2, token_term: int = 6, **memory) -> str:
    """An untrained indexer (for pairs of layers) and a memory of 5 slots."""
    torch.manual_seed(0)
    settings = IndexerConfig(pair_term=True, heads=2, dim=4, share_every=share_every, token_term=token_term)
    indexers = IndexerStack(IndexerShape.of(settings, geometry), geometry)
    memories = MemoryStack(MemoryShape.of(MemoryConfig(**{"dim": 5} | memory), geometry), geometry)
    return str(save_modules({"indexer": indexers, "memory-indexer": memories}, folder))


def cells_of(budget: Budget, names=METHODS) -> list[GridCell]:
    params = {"snapkv": {"window_size": 16}, "pyramidkv": {"window_size": 4}, "adakv": {"base": {"name": "knorm"}}}
    return [
        GridCell(name, MethodConfig(name=name, params=params.get(name, {})), budget, "niah_single_1", "b", "")
        for name in names
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    return checkpoint_of(tiny_backbone().geometry, tmp_path_factory.mktemp("modules"))


def prepared(family: str, checkpoint: str, budget: str | float, names=METHODS, length=LENGTH, share=None, **eviction):
    """method name -> its compressed context, and what failed."""
    backbone, cells = tiny_backbone(family), cells_of(Budget.parse(budget), names)
    config = EvictionConfig(**eviction)
    context = MethodContext(backbone.geometry, checkpoint=checkpoint, share=share)
    methods = {cell.method.label: make_method(cell.method, context) for cell in cells}
    done = compress_cells(backbone, random_ids(length), cells, methods, config)
    return {name: ready.cache for name, ready in done.ready.items()}, done.errors


def held(row: RowCache) -> int:
    return row.kv_bytes + row.indexer_bytes + row.memory_bytes


def lengths(row: RowCache) -> list[int]:
    return [length for layer in range(len(row.kept_HK)) for length in row.lengths(layer)]


@pytest.mark.parametrize("size", [20_000, 60_000, 100_000])
def test_a_budget_in_bytes_makes_methods_equal_in_all_that_they_hold(checkpoint, size):
    rows, errors = prepared("llama", checkpoint, f"{size} B")
    assert not errors
    for name, row in rows.items():
        per_token = TOKEN + (KEYS if name in ("indexer", "indexmem") else 0)
        slack = per_token if name == "pyramidkv" else 0  # which rounds to the nearest token in each layer
        step = row.representation_step or per_token
        assert size - step < held(row) <= size + slack, name
    assert rows["indexmem"].memory_bytes > 0
    assert lengths(rows["indexmem"])[0] < lengths(rows["indexer"])[0] < lengths(rows["snapkv"])[0]


def test_sliding_windows_count_towards_a_budget_in_bytes(tmp_path):
    backbone = tiny_backbone("gemma3_text")
    windows = backbone.geometry.window_bytes(LENGTH, 4)
    rows, errors = prepared("gemma3_text", "", "60 kB", ("knorm", "xkv"))
    assert not errors
    assert windows > 10_000
    assert all(59_000 < held(row) <= 60_000 for row in rows.values())
    assert set(lengths(rows["knorm"])) == {(60_000 - windows) // TOKEN}


@pytest.mark.parametrize("budget", ["1 GiB", "9999 tokens", 0.0])
def test_a_context_within_its_budget_is_kept_whole(checkpoint, budget):
    rows, errors = prepared("llama", checkpoint, budget, ("knorm", "pyramidkv", "adakv", "xkv", "indexmem"))
    assert not errors
    assert all(set(lengths(row)) == {LENGTH} for row in rows.values())


def test_tokens_are_kept_per_head_in_the_mean(checkpoint):
    rows, errors = prepared("llama", checkpoint, "40 tokens")
    assert not errors
    assert set(lengths(rows["knorm"])) == {40}
    assert set(lengths(rows["indexmem"])) == {40}
    assert sum(lengths(rows["adakv"])) == 40 * 6
    assert len(set(lengths(rows["adakv"]))) > 1
    assert 0 < rows["xkv"].representation_bytes <= 40 * TOKEN


@pytest.mark.parametrize("memory", [{}, {"features": "positive"}, {"features": "linear", "fusion": "add"}])
@pytest.mark.parametrize("share_every", [1, 2, 3])
def test_what_a_method_says_it_holds_is_what_its_rows_hold(tmp_path, memory, share_every):
    backbone = tiny_backbone()
    folder = checkpoint_of(backbone.geometry, tmp_path, share_every, **memory)
    for name in ("indexer", "indexmem"):
        method = make_method(MethodConfig(name=name), MethodContext(backbone.geometry, checkpoint=folder))
        done = prefill(backbone, random_ids(60), {name: method}, sinks=4)
        footprint = Footprint.of(method, backbone.geometry, 60, 4)
        for tokens in (1, 17, 60):
            row = method.compress(done.context, done.rankings_HL[name], tokens)
            assert held(row) == footprint.bytes_of(tokens)
            check_bytes(row, footprint, tokens)


def test_bytes_below_what_a_method_holds_in_any_case_are_a_failed_row_that_names_the_least(checkpoint):
    rows, errors = prepared("llama", checkpoint, "4 KiB", ("indexer", "indexmem"))
    assert rows.keys() == {"indexer"}
    method = make_method(MethodConfig(name="indexmem"), MethodContext(tiny_backbone().geometry, checkpoint=checkpoint))
    least = method.state_bytes + TOKEN + KEYS
    assert f"smallest budget here is '{Budget('bytes', least)}'" in str(errors["indexmem"])
    rows, errors = prepared("llama", checkpoint, f"{least} B", ("indexmem",))
    assert held(rows["indexmem"]) == least


@pytest.mark.parametrize("budget", [0.5, "45 tokens"])
def test_equal_bytes_are_those_of_the_budget_s_keys_and_values(checkpoint, budget):
    """Whatever dtype a state has: what a method holds besides K and V comes out of its tokens."""
    room = (LENGTH * 0.5 if budget == 0.5 else 45) * TOKEN
    rows, errors = prepared("llama", checkpoint, budget, equal_bytes=True)
    assert not errors
    for name, row in rows.items():
        per_token = TOKEN + (KEYS if name in ("indexer", "indexmem") else 0)
        assert room - (row.representation_step or per_token) < held(row) <= room, name
    assert lengths(rows["indexmem"])[0] < lengths(rows["indexer"])[0] < lengths(rows["snapkv"])[0]
    plain, _ = prepared("llama", checkpoint, budget)
    assert lengths(rows["snapkv"]) == lengths(plain["snapkv"]), "K and V alone are what they were"


def test_equal_bytes_hold_while_decoding(checkpoint):
    cells = cells_of(Budget.parse("60 tokens"), ("knorm", "indexmem"))
    context = MethodContext(tiny_backbone().geometry, checkpoint=checkpoint)
    methods = {cell.method.label: make_method(cell.method, context) for cell in cells}
    state = methods["indexmem"].state_bytes
    for decode_budget in (60, "budget"):
        config = EvictionConfig(decode_budget=decode_budget, decode_window=4, equal_bytes=True)
        done = compress_cells(tiny_backbone(), random_ids(LENGTH), cells, methods, config)
        assert not done.errors
        budgets = [done.ready[cell.id].compression.budget for cell in cells]
        assert budgets == [60, int((60 * TOKEN - state) / (TOKEN + KEYS))]


def test_a_budget_while_decoding_is_part_of_the_request(checkpoint):
    settings = {"decode_budget": 20, "decode_window": 4}
    rows, errors = prepared("llama", checkpoint, 0.25, ("knorm", "indexmem"), **settings)
    assert not errors
    assert [set(lengths(row)) for row in rows.values()] == [{20}, {20}]


def test_before_prefill_budgets_are_the_same(checkpoint):
    for budget in ("30 tokens", "30 kB"):
        (late, _), (early, errors) = (
            prepared("llama", checkpoint, budget, ("indexer",), when=when)
            for when in ("after_prefill", "before_prefill")
        )
        assert not errors
        assert lengths(early["indexer"]) == lengths(late["indexer"])
        assert held(early["indexer"]) == held(late["indexer"])


@pytest.mark.parametrize(("share", "share_every"), [("model", 1), ("model", 3), ("layer", 2)])
@pytest.mark.parametrize("token_term", [0, 6])
def test_a_budget_in_bytes_holds_exactly_where_heads_share_it(tmp_path, share, share_every, token_term):
    folder = checkpoint_of(tiny_backbone().geometry, tmp_path, share_every, token_term)
    rows, errors = prepared("llama", folder, "60 kB", ("indexer", "indexmem"), share=share)
    assert not errors
    owners = range(0, 3, share_every)
    for name, row in rows.items():
        assert len(set(lengths(row))) > 1, "heads differ"
        assert row.indexer_bytes == sum(sum(row.lengths(n)) for n in owners) * (4 + (token_term > 0)) * 4
        # Bytes are spent to within a token of one head, in each layer that has a budget of its own.
        pair = 2 * 16 * 4 + 5 * 4
        assert 60_000 - 3 * share_every * pair < held(row) <= 60_000, name
    assert rows["indexmem"].memory_bytes > 0


@pytest.mark.parametrize(
    ("ratio", "length", "kept"), [(0.9, 240, 23), (0.9, 1000, 99), (0.5, 151, 75), (0.75, 150, 37)]
)
def test_heads_that_share_have_as_many_tokens_as_heads_that_do_not(tmp_path, ratio, length, kept):
    """kvpress' number, int(L (1 - r)), however the product is rounded."""
    assert compute_n_kept(length, ratio) == kept
    folder = checkpoint_of(tiny_backbone().geometry, tmp_path, 1, 6)
    context = MethodContext(tiny_backbone().geometry, checkpoint=folder, share="model", floor=0.1)
    configs = [MethodConfig(name="knorm"), MethodConfig(name="indexer"), MethodConfig(name="adakv")]
    configs += [MethodConfig(name="keydiff", params={"share": share}) for share in ("head", "layer", "model")]
    cells = [GridCell(config.label, config, Budget.of_ratio(ratio), "b", "b", "") for config in configs]
    ids = [token % VOCABULARY for token in range(2, 2 + length)]
    methods = {config.label: make_method(config, context) for config in configs}
    done = compress_cells(tiny_backbone(), ids, cells, methods, EvictionConfig())
    assert not done.errors
    assert {name: sum(lengths(ready.cache)) for name, ready in done.ready.items()} == dict.fromkeys(methods, 6 * kept)


@pytest.mark.parametrize("share", ["layer", "model"])
def test_what_prefill_keeps_for_a_shared_decode_budget(tmp_path, share):
    folder = checkpoint_of(tiny_backbone().geometry, tmp_path, 1, 6)
    settings = {"decode_budget": 20, "decode_window": 4}
    for budget, mean in ((0.25, 20), ("9 tokens", 9)):
        rows, errors = prepared("llama", folder, budget, ("indexer",), share=share, **settings)
        assert not errors
        assert sum(lengths(rows["indexer"])) == 6 * mean
        assert max(lengths(rows["indexer"])) > mean
    rows, errors = prepared("llama", folder, 0.0, ("indexer",), share=share, decode_budget=200)
    assert set(lengths(rows["indexer"])) == {LENGTH}


@pytest.mark.parametrize("budget", ["30 tokens", "30 kB"])
def test_before_prefill_heads_of_a_layer_share_a_budget(tmp_path, budget):
    folder = checkpoint_of(tiny_backbone().geometry, tmp_path, 1, 6)
    rows, errors = prepared("llama", folder, budget, ("indexer",), share="layer", when="before_prefill")
    assert not errors
    row = rows["indexer"]
    assert len({sum(row.lengths(layer)) for layer in range(3)}) == 1 and len(set(lengths(row))) > 1
    if budget == "30 tokens":
        assert sum(lengths(row)) == 6 * 30
    else:
        assert 30_000 - 3 * 148 < held(row) <= 30_000


@pytest.mark.parametrize("length", [90, 200])
def test_every_method_keeps_what_is_requested(tmp_path, length):
    backbone = tiny_backbone("qwen3")
    methods = every_method(backbone.geometry, tmp_path)
    done = prefill(backbone, random_ids(length), methods, sinks=4)
    for name, method in methods.items():
        if name == "full" or name in done.errors:
            continue
        for target in (length * 0.75, 0.4 * length, 33.7, 12):
            row = method.compress(done.context, done.rankings_HL[name], target)
            check_kept(row, target, method.selection.slack)
            check_bytes(row, Footprint.of(method, backbone.geometry, length, 4), target, method.selection.slack)
    assert len(methods) - len(done.errors) > 20


@given(
    length=st.integers(2, 5000),
    share=st.floats(0, 1, exclude_min=True),
    layers=st.integers(1, 48),
    window=st.sampled_from([1, 8, 64]),
)
def test_a_pyramid_has_the_requested_size_where_kvpress_falls_back_and_where_layers_are_full(
    length, share, layers, window
):
    method = PyramidKV(PyramidKVPress(window_size=window))
    kept = [method.selection.count(length, length * share, layer, layers) for layer in range(layers)]
    assert 1 <= min(kept) <= max(kept) <= length
    assert abs(sum(kept) / layers - length * share) <= 1


class Half(PerHead):
    """Ignores its budget."""

    def count(self, tokens: int, target: float, layer: int, layers: int) -> int:
        return tokens // 2


class Deaf(Random):
    """Ignores its budget."""

    selection = Half()


class Hoarder(Random):
    """Holds more than it says."""

    def indexer_bytes(self, lengths, element_size):
        return 0 if lengths[0][0] == 1 else 5000


def rows_of(method: EvictionMethod, budget: str | float) -> dict:
    backbone = tiny_backbone()
    (cell,) = cells_of(Budget.parse(budget), ["random"])
    evaluator = CellEvaluator(
        validate({}, "test"), backbone, {"random": method}, {"git_commit": "", "versions": {}, "host": ""}
    )
    sample = Sample("niah_single_1/0", "niah_single_1", "some words that go on " * 12, "what?", "", ("x",), 4)
    (row,), _ = evaluator.evaluate([Task(sample, (cell,))])
    return row


def test_a_method_that_ignores_its_budget_gives_failed_rows():
    row = rows_of(Deaf(), 0.9)
    assert (row["status"], row["error_class"]) == ("failed", "BudgetError")
    assert "tokens per head, the method keeps" in row["error_message"]
    assert rows_of(Deaf(), 0.5)["status"] == "ok"


@pytest.mark.parametrize(
    ("requested", "kept", "fine"),
    [
        *((10.99, kept, kept == 10) for kept in (8, 9, 10, 11, 12)),
        *((10.0, kept, kept == 10) for kept in (8, 9, 10, 11, 12)),
        *((99.99999999999997, kept, kept in (99, 100)) for kept in (98, 99, 100, 101)),
        (0.2, 1, True),
        (0.2, 2, False),
    ],
)
def test_what_is_kept_is_what_is_requested(requested, kept, fine):
    key = torch.zeros(2, 200, 4)
    row = RowCache([key], [key], [torch.arange(kept).expand(2, kept)])
    if fine:
        check_kept(row, requested)
        return
    with pytest.raises(BudgetError, match="tokens per head, the method keeps"):
        check_kept(row, requested)


def test_one_token_of_one_head_too_many_is_noticed():
    key = torch.zeros(2, 200, 4)
    uneven = [torch.tensor([10, count]) for count in (10, 11)]
    rows = [RowCache([key], [key], [torch.arange(11).expand(2, 11)], counts_H=[counts_H]) for counts_H in uneven]
    check_kept(rows[0], 10)
    check_kept(rows[1], 10.5)
    for row, requested in ((rows[1], 10), (rows[0], 11)):
        with pytest.raises(BudgetError):
            check_kept(row, requested)


def test_a_method_that_holds_more_than_it_says_fails_where_bytes_were_asked_for():
    assert rows_of(Hoarder(), "50 tokens")["status"] == "ok"
    row = rows_of(Hoarder(), "30 kB")
    assert row["error_class"] == "BudgetError"
    assert "in all, the method holds" in row["error_message"]


def test_a_representation_is_held_to_its_bytes():
    key = torch.zeros(2, 10, 4)
    row = RowCache([key], [key], [torch.arange(10).expand(2, 10)], representation_bytes=300, representation_step=20)
    check_kept(row, 300 / 64)
    check_kept(row, 319 / 64)
    with pytest.raises(BudgetError, match="asked for 384 bytes"):
        check_kept(row, 6)


def test_rows_say_what_was_requested():
    ratio, tokens = rows_of(Random(), 0.75), rows_of(Random(), "20 tokens")
    assert (ratio["budget"], ratio["ratio"]) == ("75%", 0.75)
    assert (tokens["budget"], tokens["ratio"], tokens["kept_mean"]) == ("20 tokens", None, 20)
    assert tokens["measured_ratio"] == pytest.approx(1 - 20 / tokens["context_tokens"])


def test_cell_ids_are_those_of_stored_rows():
    methods = ["full", "knorm", {"name": "snapkv", "params": {"window_size": 32}}]
    grid = {"methods": methods, "ratios": [0.5, 0.975], "budgets": ["512 tokens", "8 MiB"]}
    spec = validate({"grid": grid}, "test")
    cells = _cells(spec, "model", {"niah": "build"}, {method.label: ("weights", "") for method in spec.grid.methods})
    ids = {cell.budget.ratio: cell.id for cell in cells if cell.method.name == "knorm" and cell.budget.kind == "ratio"}
    assert ids == {0.5: "0e7a069e96b37996", 0.975: "f9a346694b75e27f"}
    assert [(cell.id, cell.budget) for cell in cells if cell.method.name == "full"] == [
        ("f11c31b02cc0278d", NOTHING_EVICTED)
    ]
    assert [cell.id for cell in cells if cell.method.name == "snapkv"][:2] == ["c619d5cb046f776c", "d89371f9b631cb67"]
    assert len({cell.id for cell in cells}) == 1 + 2 * 4


def test_the_plan_refuses_budgets_that_nothing_or_too_little_is_left_of(tmp_path):
    model = str(save_tiny_model(tmp_path / "model"))
    folder = checkpoint_of(Geometry.of(tiny_model("llama").config), tmp_path / "modules")
    grid = {"methods": ["full", "knorm", "indexmem"], "length": 256, "ratios": [], "budgets": ["4 KiB"]}
    spec = {"model": {"id": model}, "indexer": {"checkpoint": folder}, "grid": grid}
    with pytest.raises(UserError, match="for method 'indexmem', 4 KiB is less than it takes to keep one token"):
        plan(validate(spec, "test"))
    with pytest.raises(UserError, match="for method 'knorm', 700 B is less"):
        plan(validate(spec | {"grid": grid | {"budgets": ["700 B"]}}, "test"))
    few = {"grid": grid | {"budgets": ["12 tokens"]}, "eviction": {"block": 16}}
    with pytest.raises(UserError, match=r"block=16: for method 'knorm', a budget of 12 tokens .* less than one"):
        plan(validate(spec | few, "test"))


@pytest.mark.parametrize(
    ("eviction", "grid", "words"),
    [
        ({}, {"ratios": []}, "grid.ratios and grid.budgets are empty"),
        ({"equal_bytes": True}, {"ratios": [], "budgets": ["8 MiB"]}, "equal_bytes has no effect on budgets in bytes"),
    ],
)
def test_settings_that_do_not_go_with_budgets(eviction, grid, words):
    with pytest.raises(UserError, match=words):
        check_budgets(EvictionConfig(**eviction), GridConfig(methods=[MethodConfig(name="knorm")], **grid))
    check_budgets(EvictionConfig(), GridConfig(methods=[MethodConfig(name="full")], ratios=[]))


def test_a_budget_whose_bytes_a_memory_fills_is_refused_before_anything_starts(tmp_path):
    model = str(save_tiny_model(tmp_path / "model"))
    folder = checkpoint_of(Geometry.of(tiny_model("llama").config), tmp_path / "modules")
    grid = {"methods": ["full", "indexmem"], "length": 256, "ratios": [0.5, 0.99]}
    spec = {"model": {"id": model}, "indexer": {"checkpoint": folder}, "grid": grid, "eviction": {"equal_bytes": True}}
    with pytest.raises(UserError, match=r"for method 'indexmem', 99% \(.* bytes of K and V\) is less"):
        plan(validate(spec, "test"))


def test_the_setting_of_before_is_named_with_what_took_its_place():
    with pytest.raises(
        UserError, match=r"'eviction.extra_tokens' is no setting any more. Use eviction.equal_bytes=true"
    ):
        validate({"eviction": {"extra_tokens": 64}}, "test")


def test_the_footprint_of_the_full_cache_is_the_models_own():
    geometry = tiny_backbone("gemma3_text").geometry
    assert Footprint.of(FullCache(), geometry, 77, 2).bytes_of(77) == geometry.kv_bytes(77, 2)
