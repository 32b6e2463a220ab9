"""What specs say of the trained modules: defaults, the paper's presets, and settings that belong together."""

from pathlib import Path

import pytest

from indexmem.config.load import load, validate, with_overrides
from indexmem.distill.checks import check_distill
from indexmem.errors import UserError

REPOSITORY = Path(__file__).parents[2]
PRESETS = REPOSITORY / "sweeps" / "presets"
OURS = {"scope": "kv_head", "pair_term": False, "token_term": 128, "share": "model", "floor": 0.1}


@pytest.mark.parametrize("name", ["paper", "paper-table1"])
def test_the_paper_s_presets_mean_the_paper_s_settings(name):
    spec = load(PRESETS / f"{name}.yaml")
    indexer = spec.indexer
    assert (indexer.scope, indexer.pair_term, indexer.token_term, indexer.share) == ("layer", True, 0, "head")
    assert (indexer.heads, indexer.dim, indexer.activation, indexer.share_every) == (None, None, "relu", 1)
    target = spec.target
    assert (target.source, target.loss, target.heads, target.scale) == ("logits", "kl", "max", "head")
    assert (spec.memory.features, spec.memory.fusion, spec.memory.rotary) == ("linear", "add", "pre")


def test_the_default_preset_is_what_a_spec_without_settings_means():
    spec, plain = load(PRESETS / "default.yaml"), validate({}, "test")
    assert OURS.items() <= spec.indexer.model_dump().items()
    assert spec.target == plain.target
    assert spec.memory == plain.memory
    assert spec.distill.texts == plain.distill.texts
    # None: as trained, which is for all heads here.
    assert spec.indexer.model_dump(exclude={"share"}) == plain.indexer.model_dump(exclude={"share"})
    assert plain.indexer.share is None and plain.target.calibrated


def test_the_documented_overrides_mean_the_paper_s_settings():
    page = (REPOSITORY / "docs" / "method.md").read_text(encoding="utf-8")
    overrides = page.split("**The paper as printed**")[1].split("\n\n")[1].split()
    printed, preset = with_overrides(validate({}, "test"), overrides), load(PRESETS / "paper.yaml")
    assert printed.indexer == preset.indexer.model_copy(update={"share": None})
    assert printed.target == preset.target.model_copy(update={"scale": "model"})


@pytest.mark.model
@pytest.mark.parametrize("name", ["default", "paper"])
def test_presets_can_be_trained(name):
    check_distill(load(PRESETS / f"{name}.yaml"))


@pytest.mark.parametrize(
    "settings",
    [
        {"target": {"source": "logprobs", "loss": "mse", "scale": "model"}},
        {"target": {"source": "logits", "loss": "kl", "scale": "model"}},
        {"target": {"source": "logprobs", "request": "", "chunk": 2048}},  # the defaults, written out
        {"target": {"source": "reconstruction", "loss": "kl", "request": "Again:", "chunk": 7}},
        {"indexer": {"scope": "layer", "share": "head"}},
        {"indexer": {"pair_term": False, "token_term": 1}},
    ],
)
def test_settings_that_fit_together(settings):
    spec = validate(settings, "test")
    for section, values in settings.items():
        assert values.items() <= getattr(spec, section).model_dump().items()


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_losses_of_single_scores_need_probabilities(loss):
    with pytest.raises(UserError, match=f"loss={loss} .* use loss=kl, or source=logprobs or reconstruction"):
        validate({"target": {"source": "logits", "loss": loss}}, "test")
