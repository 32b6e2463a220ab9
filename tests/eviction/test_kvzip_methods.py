"""KVzip and its kin: the replay against kvpress and against one long forward pass; trained gates against kvpress."""

from dataclasses import replace

import pytest
import torch
from kvpress import FastKVzipPress, KVzipPress
from kvpress_oracle import kept_mask, kvpress_cache, kvpress_model, masked_kept
from method_zoo import save_gates
from tiny_models import FAMILIES, FULL_FAMILIES, random_ids, tiny_backbone
from tiny_tokenizers import SENTENCES, tiny_tokenizer

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import Stopwatch, prefill
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.methods import kvzip
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.kvzip import KVzip
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import tapping
from indexmem.models.prompt import PromptFormat, encode

LENGTH = 240
RATIOS = (0.25, 0.6, 0.9)  # of 240 tokens, each a whole number


def scored(method, family, length=LENGTH, sinks=4):
    backbone = tiny_backbone(family)
    done = prefill(backbone, random_ids(length), {"m": method}, sinks, prompt=PromptFormat.of(backbone.tokenizer))
    assert not done.errors, done.errors
    return done


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("chunk_size", [2048, 64, 5])
@pytest.mark.parametrize("layerwise", [False, True])
def test_kvzip_keeps_what_kvpress_does_not_mask(family, chunk_size, layerwise, tmp_path, monkeypatch):
    monkeypatch.setattr(kvzip, "BLOCK_LOGITS", 4 * LENGTH * 50)  # 50 queries at a time
    tiny_tokenizer().save_pretrained(tmp_path)
    method = KVzip(chunk_size=chunk_size, layerwise=layerwise)
    done = scored(method, family)
    for ratio in RATIOS:
        row = method.compress(done.context, done.rankings_HL["m"], LENGTH * (1 - ratio))
        model = kvpress_model(family, str(tmp_path))
        press = KVzipPress(compression_ratio=ratio, chunk_size=chunk_size, layerwise=layerwise)
        kvpress_cache(model, press, random_ids(LENGTH))
        for layer, theirs_HL in enumerate(masked_kept(model, LENGTH)):
            assert torch.equal(kept_mask(row, layer), theirs_HL), (ratio, layer)
        totals = {sum(row.lengths(layer)) for layer in range(3)}
        assert (len(totals) == 1) == layerwise


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chat", [True, False])
def test_the_replay_is_a_forward_pass_over_context_and_replay(family, chat):
    """The same scores from one plain pass over everything, in fp64 from its queries and keys."""
    backbone = tiny_backbone(family)
    backbone.tokenizer.chat_template = backbone.tokenizer.chat_template if chat else None
    ids, chunk = random_ids(90), 40
    prompt = PromptFormat.of(backbone.tokenizer)
    prefix, suffix = (encode(backbone.tokenizer, part) for part in (prompt.prefix, prompt.suffix))
    first = len(prefix)
    assert 0 < first < 40
    expected = [torch.zeros(2, 90, dtype=torch.float64) for _ in range(3)]
    for number, start in enumerate(range(first, 90, chunk)):
        part = ids[start : start + chunk]
        words = kvzip.REPEAT_FROM if number else kvzip.REPEAT_ALL
        asked = encode(backbone.tokenizer, words) + (ids[start - 8 : start] if number else [])
        taps = []
        with tapping(backbone.model, taps.append) as kwargs, torch.no_grad():
            backbone.model(torch.tensor([ids + asked + suffix + part]), use_cache=False, **kwargs)
        for tap, scores_HL in zip(taps, expected):
            sinks = min(4, start)
            columns = [*range(sinks), *range(start, start + len(part)), *range(90, tap.key_BHLd.shape[2])]
            for head in range(4):
                for position in range(90, tap.query_BQLd.shape[2]):
                    seen = torch.tensor([column for column in columns if column <= position])
                    logits = tap.key_BHLd[0, head // 2, seen].double() @ tap.query_BQLd[0, head, position].double()
                    attention = (logits * tap.scaling).softmax(0)[sinks : sinks + len(part)]
                    target = scores_HL[head // 2, start : start + len(part)]
                    torch.maximum(target, attention, out=target)
    method = KVzip(chunk_size=chunk)
    done = prefill(backbone, ids, {"m": method}, sinks=4, prompt=prompt)
    assert not done.errors
    for ours_HL, slow_HL in zip(done.rankings_HL["m"], expected):
        assert (ours_HL[:, :4] == float("inf")).all()
        torch.testing.assert_close(ours_HL[:, 4:].double(), slow_HL[:, 4:], atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("chat", [True, False])
def test_only_what_the_sample_s_prompt_has_before_its_text_is_not_replayed(chat):
    """A text without a template (some of LongBench's) is scored from its first token on."""
    backbone = tiny_backbone()
    method = KVzip(n_sink=0)
    cell = GridCell(
        "c", MethodConfig(name="kvzip", params={"n_sink": 0}), Budget.of_ratio(0.5), "niah_single_1", "b", ""
    )
    provenance = {"git_commit": "", "versions": {}, "host": ""}
    evaluator = CellEvaluator(
        validate({"eviction": {"sinks": 0}}, "test"), backbone, {cell.method.label: method}, provenance
    )
    text = " ".join(SENTENCES[:4])
    seen = []
    method.score_context = lambda *given: (seen.append(KVzip.score_context(method, *given)), seen[-1])[1]
    evaluator.evaluate([Task(Sample("s", "niah_single_1", text, "what?", "", ("x",), 2, chat=chat), (cell,))])
    (scores_NHL,) = seen
    first = len(encode(backbone.tokenizer, PromptFormat.of(backbone.tokenizer, chat=chat).prefix))
    assert (first > 4) == chat
    for scores_HL in scores_NHL:
        assert scores_HL.shape[1] == first + len(encode(backbone.tokenizer, text))
        assert not scores_HL[:, :first].any()
        assert (scores_HL[:, first:] > 0).all()


def test_the_own_pass_counts_as_scoring_and_leaves_the_prefill_as_it_is(monkeypatch):
    backbone, ids = tiny_backbone(), random_ids(LENGTH)
    plain = prefill(backbone, ids, {}, sinks=4)
    read = [0]  # a clock that counts tokens through the first layer, no seconds, which other processes take
    backbone.model.model.layers[0].mlp.register_forward_pre_hook(
        lambda _, given: read.append(read[-1] + given[0].shape[1])
    )
    monkeypatch.setattr(Stopwatch, "_now", lambda watch: float(read[-1]))
    before = [{*vars(module), *module._modules} for module in backbone.model.modules()]
    done = prefill(backbone, ids, {"kvzip": KVzip(), "again": KVzip()}, sinks=4)
    assert [{*vars(module), *module._modules} for module in backbone.model.modules()] == before
    assert done.seconds == LENGTH
    assert done.score_seconds["kvzip"] == done.score_seconds["again"] > LENGTH, "each replays the context, and a prompt"
    for one, other in zip(plain.context.keys_HLd, done.context.keys_HLd):
        assert torch.equal(one, other)
    for one, other in zip(done.rankings_HL["kvzip"], done.rankings_HL["again"]):
        assert torch.equal(one, other)


def test_a_failing_own_pass_spares_the_other_methods():
    class Broken(KVzip):
        def score_context(self, backbone, context, context_ids, prompt):
            raise ValueError("no replay")

    backbone = tiny_backbone()
    knorm = make_method(MethodConfig(name="knorm"), MethodContext(backbone.geometry))
    done = prefill(backbone, random_ids(60), {"broken": Broken(), "knorm": knorm}, sinks=4)
    assert str(done.errors["broken"]) == "no replay"
    assert len(done.rankings_HL["knorm"]) == 3


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("layerwise", [False, True])
def test_fastkvzip_keeps_what_kvpress_does_not_mask(family, layerwise, tmp_path):
    gates = save_gates(tmp_path / "gates.pt", tiny_backbone(family).geometry)
    params = {"weights": str(tmp_path / "gates.pt"), "layerwise": layerwise}
    method = make_method(MethodConfig(name="fastkvzip", params=params), MethodContext(tiny_backbone(family).geometry))
    done = scored(method, family)
    for ratio in RATIOS:
        row = method.compress(done.context, done.rankings_HL["m"], LENGTH * (1 - ratio))
        model = kvpress_model(family)
        press = FastKVzipPress(compression_ratio=ratio, layerwise=layerwise)
        press.gates = gates
        kvpress_cache(model, press, random_ids(LENGTH))
        for layer, theirs_HL in enumerate(masked_kept(model, LENGTH)):
            assert torch.equal(kept_mask(row, layer), theirs_HL), (ratio, layer)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("kvzip", {"chunk_size": 0}, "chunk_size=0 must be a number of tokens, 1 or more"),
        ("kvzip", {"n_sink": -1}, "n_sink=-1"),
        ("kvzip+memory", {}, "no memory can be trained"),
        ("running_mean+memory", {}, "ranks by all layers' scores, so no memory can be trained"),
        ("fastkvzip", {}, "weights: FOLDER or a hub id such as Jang-Hyun/Fast-KVzip"),
        ("fastkvzip", {"weights": "./nowhere.pt"}, "./nowhere.pt does not exist"),
        ("fastkvzip", {"weights": "gates.pt"}, "could not be loaded"),
    ],
)
def test_mistakes_are_named(name, params, words):
    with pytest.raises(UserError, match=words):
        make_method(MethodConfig(name=name, params=params), MethodContext(tiny_backbone().geometry))


def test_gates_of_another_model_are_refused(tmp_path):
    save_gates(tmp_path / "gates.pt", replace(tiny_backbone().geometry, layers=2))
    config = MethodConfig(name="fastkvzip", params={"weights": str(tmp_path / "gates.pt")})
    with pytest.raises(UserError, match=r"sizes \(2, 48, 2\); this model needs \(3, 48, 2\)"):
        make_method(config, MethodContext(tiny_backbone().geometry))
