"""Plans: of a model that is not at hand, and of samples that are on disk already."""

from __future__ import annotations

import pytest
from tiny_models import tiny_config
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.commands.evaluate import evaluate_spec
from indexmem.config.load import with_overrides
from indexmem.config.schema import BenchmarkConfig, Experiment, GridConfig, MethodConfig, ModelConfig
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.fetching import NotAtHand, nothing_fetched
from indexmem.models import backbone
from indexmem.models.geometry import KNOWN_GEOMETRIES, Geometry


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch):
    """Whatever asks the hub for a model fails at once."""

    def unreachable(*_, **__):
        raise OSError("there is no hub")

    monkeypatch.setattr(backbone.AutoConfig, "from_pretrained", unreachable)


def spec(tmp_path, *overrides: str, model: str = "Qwen/Qwen3-8B") -> Experiment:
    grid = GridConfig(
        methods=tuple(MethodConfig(name=name) for name in ("full", "indexmem", "snapkv")),
        benchmarks=(BenchmarkConfig(name="ruler"),),
        samples=500,
    )
    base = Experiment(name="outline", model=ModelConfig(id=model, dtype="bfloat16"), grid=grid)
    return with_overrides(base, [f"run.root={tmp_path}", "distill.modules=[indexer, memory]", *overrides])


def test_an_outline_counts_what_would_be_done(tmp_path, capsys):
    with nothing_fetched():
        grid = plan(spec(tmp_path), require_checkpoint=False)
        assert evaluate_spec(spec(tmp_path), dry_run=True) == 0
    assert grid.outline
    assert len(grid.cells) == 13 * (1 + 2 * 4)
    assert {len(samples) for samples in grid.samples.values()} == {500}
    said = capsys.readouterr().err
    assert "117 cells, 6500 samples of 4096 tokens" in said
    assert "to do: 58500 of 58500 rows" in said
    assert "KV cache: 576 MiB full" in said  # 36 layers x 8 heads x 128 x 2 x 2 bytes x 4096 tokens
    assert "not checked: The model Qwen/Qwen3-8B is not on this machine" in said
    assert "samples were not built" in said
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_an_outline_is_checked_like_any_plan(tmp_path):
    mistakes = {
        "grid.length=65536": "more than the model's context of 40960",
        "grid.methods=[snapvk]": "Did you mean 'snapkv'",
    }
    with nothing_fetched():
        for override, words in mistakes.items():
            with pytest.raises(UserError, match=words):
                plan(spec(tmp_path, override), require_checkpoint=False)
        with pytest.raises(UserError, match=r"Add `full` to grid\.methods"):
            plan(spec(tmp_path, "grid.methods=[snapkv]", "grid.full_cache_floor=0.9"), require_checkpoint=False)


def test_only_a_dry_run_takes_published_sizes(tmp_path):
    with pytest.raises(UserError, match="could not be read: there is no hub"):
        plan(spec(tmp_path), require_checkpoint=False)
    with nothing_fetched(), pytest.raises(NotAtHand, match="The model some/unknown-model is not on"):
        plan(spec(tmp_path, model="some/unknown-model"), require_checkpoint=False)


def test_published_sizes_are_those_of_the_paper_s_models():
    for name, layers in {
        "meta-llama/Llama-3.1-8B-Instruct": 32,
        "mistralai/Mistral-7B-Instruct-v0.3": 32,
        "Qwen/Qwen3-8B": 36,
    }.items():
        geometry = KNOWN_GEOMETRIES[name]
        assert (geometry.layers, geometry.heads, geometry.kv_heads, geometry.head_dim) == (layers, 32, 8, 128)
        assert geometry.kv_bytes(1, element_size=2) == layers * 4096


@pytest.fixture
def tiny_folder(tmp_path, monkeypatch):
    """A model folder without weights, with a config and a tokenizer."""
    folder = tmp_path / "tiny"
    config = tiny_config("llama")
    config.save_pretrained(folder)
    tiny_tokenizer("words").save_pretrained(folder)
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr(backbone, "inspect", lambda config: Geometry.of(tiny_config("llama")))
    monkeypatch.setattr("indexmem.evaluate.grid.inspect", lambda config: Geometry.of(tiny_config("llama")))
    return folder


def test_samples_are_made_once(tiny_folder, tmp_path, monkeypatch):
    overrides = ("grid.methods=[full]", "grid.benchmarks=[niah_single_2, vt]", "grid.samples=3", "grid.length=700")
    one = spec(tmp_path / "run", *overrides, f"grid.haystack={tmp_path / 'text.txt'}", model=str(tiny_folder))
    monkeypatch.setenv("INDEXMEM_CACHE", str(tmp_path / "cache"))
    first = plan(one)
    assert not first.outline
    assert len(list((tmp_path / "cache" / "samples").glob("*.json.gz"))) == 2
    monkeypatch.setattr("indexmem.benchmarks.ruler.task.RulerTask.samples", None)  # making them would fail
    assert plan(one).samples == first.samples
    assert plan(with_overrides(one, ["grid.samples=2"])).samples["vt"] == first.samples["vt"][:2]
