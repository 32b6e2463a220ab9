"""DuoAttention: head scores and kept tokens against kvpress, with a budget that is met exactly."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kvpress import DuoAttentionPress
from kvpress.presses import duo_attention_press
from kvpress_oracle import kept_mask, kvpress_cache, kvpress_model, masked_kept
from tiny_models import FAMILIES, random_ids, tiny_backbone

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.duo import DuoAttention
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import tapping

LENGTH, SINK, RECENT = 200, 6, 20
CONTEXT = MethodContext(tiny_backbone().geometry)


class OneText:
    """Stands in for kvpress' books and their tokenizer: the same ids, whatever is asked."""

    def __init__(self, ids):
        self.ids = torch.tensor([ids])

    def __getitem__(self, name):
        return torch.zeros(1)

    def __call__(self, *args, **kwargs):
        return duo_attention_press.AutoTokenizer.Encoded(input_ids=self.ids)

    to_pandas = from_pretrained = sample = lambda self, *args, **kwargs: self


class Encoded(dict):
    def to(self, device):
        return self


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])  # kvpress reads q_proj, which phi3 lacks
def test_head_scores_equal_kvpress_on_the_fly(family, monkeypatch):
    ids = random_ids(LENGTH)
    text = OneText(ids)
    text.Encoded = Encoded
    monkeypatch.setattr(duo_attention_press, "AutoTokenizer", text)
    monkeypatch.setattr(duo_attention_press, "load_dataset", lambda *args, **kwargs: text)
    score = duo_attention_press.duo_attention_on_the_fly.__wrapped__  # without its cache, which knows models by name
    theirs_NH = torch.from_numpy(score(kvpress_model(family), num_samples=1))
    done = prefill(tiny_backbone(family), ids, {"m": DuoAttention(CONTEXT)}, sinks=4)
    torch.testing.assert_close(
        torch.stack([ranking[:, 0] for ranking in done.rankings_HL["m"]]), theirs_NH, atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_finite_and_the_same_for_all_tokens(family):
    taps = []
    with tapping(tiny_backbone(family).model, taps.append) as kwargs, torch.no_grad():
        tiny_backbone(family).model(torch.tensor([random_ids(LENGTH)]), use_cache=False, **kwargs)
    for tap in taps:
        scores_BHL = DuoAttention(CONTEXT).score(tap)
        assert scores_BHL.shape == (1, 2, LENGTH)
        assert ((scores_BHL > 0) & (scores_BHL <= 1)).all()
        assert (scores_BHL == scores_BHL[..., :1]).all()


def pattern_folder(folder, scores_NH, **settings):
    """A pattern as the authors publish them."""
    np.savetxt(folder / "full_attention_heads.tsv", scores_NH, delimiter="\t")
    if settings:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
@pytest.mark.parametrize("streaming", [1, 3, 5, 6])
def test_budgets_of_whole_heads_keep_what_kvpress_does_not_mask(family, streaming, tmp_path, monkeypatch):
    scores_NH = np.random.default_rng(0).permutation(6).reshape(3, 2) / 5
    pattern_folder(tmp_path, scores_NH, sink_size=SINK, recent_size=RECENT)
    press = DuoAttentionPress(head_compression_ratio=streaming / 6)
    monkeypatch.setattr(press, "load_attention_pattern", lambda model: (SINK, RECENT, scores_NH))
    model = kvpress_model(family)
    kvpress_cache(model, press, random_ids(LENGTH))
    method = DuoAttention(CONTEXT, str(tmp_path))
    done = prefill(tiny_backbone(family), random_ids(LENGTH), {"m": method}, sinks=4)
    target = ((6 - streaming) * LENGTH + streaming * (SINK + RECENT)) / 6
    row = method.compress(done.context, done.rankings_HL["m"], target)
    for layer, theirs_HL in enumerate(masked_kept(model, LENGTH)):
        assert torch.equal(kept_mask(row, layer), theirs_HL)
    assert abs(press.compression_ratio - (1 - target / LENGTH)) < 1e-6


head_scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=8)


@given(scores=head_scores, tokens=st.integers(1, 60), data=st.data())
def test_any_budget_is_met_and_goes_to_the_best_heads(scores, tokens, data):
    target = data.draw(st.floats(1, tokens))
    method = DuoAttention(CONTEXT, sink_size=3, recent_size=7)
    ranking = torch.stack((torch.tensor(scores), torch.full((len(scores),), 3.0)), dim=1)
    kept_XL = method.selection.mark(ranking, tokens, target)
    counts_X = kept_XL.sum(1)
    assert abs(int(counts_X.sum()) - len(scores) * target) < 1 + 1e-3
    window = min(10, tokens, int(len(scores) * target + 1e-6) // len(scores))
    assert (counts_X >= window).all()
    between = ((counts_X > window) & (counts_X < tokens)).sum()
    assert between <= 1, "one head at most stands between window and whole context"
    for better in range(len(scores)):
        for worse in range(len(scores)):
            if scores[better] > scores[worse]:
                assert counts_X[better] >= counts_X[worse]
    for kept_L, count in zip(kept_XL, counts_X.tolist()):
        first = min(3, count)
        assert kept_L[:first].all()
        assert kept_L[tokens - (count - first) :].all()


def test_the_sinks_of_the_grid_stay_where_the_method_has_fewer():
    method = DuoAttention(CONTEXT, sink_size=1, recent_size=2)
    done = prefill(tiny_backbone(), random_ids(LENGTH), {"m": method}, sinks=5)
    row = method.compress(done.context, done.rankings_HL["m"], 20)
    assert all(kept_mask(row, layer)[:, :5].all() for layer in range(3))


def test_a_pattern_is_part_of_a_cell_s_identity(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    folders = [pattern_folder(tmp_path / name, np.full((3, 2), value)) for name, value in (("a", 0.2), ("b", 0.3))]
    hashes = {DuoAttention(CONTEXT, str(folder)).checkpoint for folder in folders}
    assert len(hashes) == 2
    assert "" not in hashes
    assert DuoAttention(CONTEXT).checkpoint == ""
    settings = pattern_folder(tmp_path / "a", np.full((3, 2), 0.2), sink_size=9, recent_size=30)
    assert DuoAttention(CONTEXT, str(settings)).sink_size == 9
    assert DuoAttention(CONTEXT, str(settings), sink_size=4).sink_size == 4
    assert DuoAttention(CONTEXT, str(settings / "full_attention_heads.tsv")).recent_size == 256


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"pattern": "nowhere"}, "nowhere is neither a file of head scores nor a folder"),
        ({"pattern": "{folder}"}, "has 2 rows of 2 numbers; this model has 3 layers with 2 KV heads"),
        ({"pattern": "{folder}/words.tsv"}, "must hold numbers alone"),
        ({"recent_size": 0}, "recent_size=0 must be a number of tokens, 1 or more"),
        ({"ratio": 1}, "Allowed: pattern, sink_size, recent_size"),
    ],
)
def test_mistakes_are_named(params, words, tmp_path):
    pattern_folder(tmp_path, np.zeros((2, 2)))
    (tmp_path / "words.tsv").write_text("a b\nc d\ne f\n")
    params = {name: value.format(folder=tmp_path) if name == "pattern" else value for name, value in params.items()}
    with pytest.raises(UserError, match=words):
        make_method(MethodConfig(name="duo_attention", params=params), CONTEXT)
