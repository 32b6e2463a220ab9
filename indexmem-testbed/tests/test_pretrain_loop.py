"""Pre-training learns, resumes exactly and stops at nonsense; what it leaves is a model that the engine runs."""

import json
from dataclasses import dataclass

import pytest
import torch

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.load import validate
from indexmem.config.schema import ModelConfig
from indexmem.distill.history import History
from indexmem.errors import UserError
from indexmem.models.backbone import load_backbone
from indexmem.texts.documents import load_texts
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.local import RankContext, check_world, train
from indexmem_testbed.loop import compile_layers, new_module, pretrain, schedule
from indexmem_testbed.model import make_model, parameter_count
from indexmem_testbed.validation import ValidationSet, exact_match

CPU = torch.device("cpu")


@pytest.fixture
def config():
    return PretrainConfig(
        architecture={"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 48, "max_positions": 1024},
        texts=("essays-train",),
        stages=[{"length": 32, "share": 0.5, "dense": 0.9}, {"length": 128, "share": 0.5}],
        steps=8,
        step_tokens=256,
        checkpoint_every=3,
        evaluate_samples=0,
        peak_lr=0.01,
    )


def run(config, context, history=None):
    pretrain(config, context, history or History(context.folder / "history"), new_module(config, CPU))


def state_of(folder):
    return torch.load(folder / "state.pt", weights_only=True)["model"]


def test_loss_falls_through_all_stages(config, tmp_path):
    """Text alone: which tokens are frequent is learned at once."""
    stages = ({"length": 128, "share": 0.5, "dense": 0.0}, {"length": 256, "share": 0.5, "dense": 0.0})
    longer = PretrainConfig(**config.model_dump() | {"steps": 40, "stages": stages, "mixture": {"text": 1.0}})
    run(longer, RankContext(tmp_path))
    rows = History(tmp_path / "history").read()
    assert [row["length"] for row in rows] == [128] * 20 + [256] * 20
    losses = [row["loss"] for row in rows]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


@dataclass(frozen=True)
class KilledAt(RankContext):
    """Dies right after publishing the checkpoint of this step."""

    at: int = 0

    def checkpoint(self, folder, metrics):
        super().checkpoint(folder, metrics)
        if metrics["step"] == self.at:
            raise KeyboardInterrupt


def test_a_killed_run_ends_in_the_same_weights(config, tmp_path):
    run(config, RankContext(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        run(config, KilledAt(tmp_path / "parts", at=3))
    run(config, RankContext(tmp_path / "parts"))
    whole, parts = (state_of(tmp_path / name / "step-00000008") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    losses = [[row["loss"] for row in History(tmp_path / name / "history").read()] for name in ("whole", "parts")]
    assert losses[0] == losses[1] and len(losses[0]) == 8
    assert sorted(path.name for path in (tmp_path / "parts").glob("step-*")) == ["step-00000006", "step-00000008"]


def test_ranks_together_take_the_step_of_one(config, tmp_path):
    """Two ranks with unequal weights: the mean of their gradients is the gradient of the whole batch."""
    ids_BL = torch.randint(2, 90, (4, 24), generator=torch.Generator().manual_seed(0))
    weights_BL = torch.rand(4, 24, generator=torch.Generator().manual_seed(1))
    module = new_module(config, CPU)

    def gradient(rows, total):
        module.zero_grad()
        (module(ids_BL[rows], weights_BL[rows]) / total).backward()
        return module.model.model.embed_tokens.weight.grad.clone()

    whole = gradient(slice(None), weights_BL[:, 1:].sum())
    share = (weights_BL[:2, 1:].sum() + weights_BL[2:, 1:].sum()) / 2  # what `mean` gives every rank
    ranks = [gradient(rows, share) for rows in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close((ranks[0] + ranks[1]) / 2, whole)


def test_the_loss_is_the_weighted_cross_entropy_of_each_next_token(config):
    module, ids_BL = new_module(config, CPU).double(), torch.randint(2, 90, (2, 9))
    weights_BL = torch.rand(2, 9).double()
    logits_BLV = module.model(ids_BL).logits.double().log_softmax(-1)
    expected = sum(
        -weights_BL[b, i] * logits_BLV[b, i - 1, ids_BL[b, i]] for b in range(2) for i in range(1, ids_BL.shape[1])
    )
    torch.testing.assert_close(module(ids_BL, weights_BL).double(), expected, rtol=1e-5, atol=1e-5)


def test_nonsense_stops_before_it_is_applied(config, tmp_path, monkeypatch):
    module = new_module(config, CPU)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    monkeypatch.setattr(module, "forward", lambda ids, weights: module.model.lm_head.weight.sum() * float("nan"))
    with pytest.raises(RuntimeError, match="loss is not finite at step 0"):
        pretrain(config, RankContext(tmp_path), History(tmp_path / "history"), module)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_call_that_runs_out_of_time_is_finished_by_the_next(config, tmp_path):
    assert train(config, tmp_path, stop_after=1e-9) is None
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001"]
    with pytest.raises(UserError, match=r"holds a training with other settings: peak_lr\. Give this one another"):
        train(config.model_copy(update={"peak_lr": 0.02}), tmp_path)
    final = train(config.model_copy(update={"loaders": 1}), tmp_path)
    assert final == tmp_path / "final"
    assert not (final / "state.pt").exists()
    assert json.loads((final / "trained.json").read_text())["step"] == 8


def test_ranks_that_do_not_divide_are_refused(config):
    with pytest.raises(UserError, match="cannot be shared by 4 processes"):
        check_world(config, 4)


def test_the_learning_rate_ends_where_the_steps_do(config):
    rates = schedule(config.model_copy(update={"steps": 100, "warmup": 0.05, "decay": 0.4}))
    assert (rates.steps, rates.warmup, rates.stable, rates.decay) == (100, 5, 55, 40)


def test_layers_run_as_they_are_where_the_compiler_fails(config, monkeypatch, capsys):
    module = new_module(config, CPU)

    def fail(self, **_):
        self._compiled_call_impl = lambda *args, **kwargs: (_ for _ in ()).throw(RuntimeError("no compiler\nhere"))

    monkeypatch.setattr(torch.nn.Module, "compile", fail)
    compile_layers(module, config, 1)
    assert module(torch.zeros(1, 32, dtype=torch.long), torch.ones(1, 32)).isfinite()
    assert "not compiled: RuntimeError: no compiler" in capsys.readouterr().out


def test_validation_asks_as_evaluation_does_and_sees_right_answers(config):
    config = config.model_copy(update={"evaluate_samples": 2, "evaluate_lengths": (512,), "heldout": "essays-train"})
    groups = {task: samples for task, _, samples in ValidationSet(config).groups()}
    assert len(groups) == 13
    assert all(ids.numel() <= 512 and int(answer.sum()) > 2 for each in groups.values() for ids, answer in each)
    samples = groups["niah_multivalue"]
    module = new_module(config, CPU)

    def knows(answers):
        logits = torch.zeros(len(samples), max(ids.numel() for ids, _ in samples), 4096)
        for row, (ids, _) in enumerate(answers):
            logits[row, torch.arange(ids.numel() - 1), ids[1:]] = 1
        return lambda ids_BL: logits

    module.logits = knows(samples)
    assert exact_match(module, samples, CPU) == 1.0
    places = samples[0][1].nonzero().flatten().tolist()
    for place in (places[0], places[-1]):
        wrong = [(ids.clone(), answer) for ids, answer in samples]
        wrong[0][0][place] += 1
        module.logits = knows(wrong)
        assert exact_match(module, samples, CPU) == 0.5


def test_the_testbed_is_small_and_its_count_is_right(config):
    model = make_model(config.architecture, 0)
    assert parameter_count(config.architecture) == sum(parameter.numel() for parameter in model.parameters())
    assert parameter_count(PretrainConfig().architecture) * 2 < 16 * 2**20


def test_what_training_leaves_runs_in_the_engine(config, tmp_path):
    from indexmem.config.budget import Budget
    from indexmem.config.schema import MethodConfig
    from indexmem.evaluate.cell import CellEvaluator
    from indexmem.evaluate.work import GridCell, Task
    from indexmem.eviction.methods.base import MethodContext
    from indexmem.eviction.methods.registry import make_method

    final = train(config, tmp_path)
    backbone = load_backbone(ModelConfig(id=str(final), device="cpu"))
    trained = state_of(tmp_path / "step-00000008")
    weight = backbone.model.state_dict()["model.layers.0.mlp.down_proj.weight"]
    torch.testing.assert_close(weight, trained["model.layers.0.mlp.down_proj.weight"], rtol=1e-2, atol=1e-3)
    assert backbone.eos_ids == (backbone.tokenizer.eos_token_id,)
    build = BuildContext(backbone.tokenizer, 640, 0, "\n\n".join(load_texts(["essays-heldout"])), 8)
    (benchmark,) = make_benchmarks(validate({"grid": {"benchmarks": ["niah_single_2"]}}, "t").grid.benchmarks)
    spec = validate({"model": {"id": str(final)}, "grid": {"benchmarks": ["niah_single_2"], "length": 640}}, "test")
    methods = {
        name: make_method(MethodConfig(name=name), MethodContext(backbone.geometry, "cpu"))
        for name in ("full", "knorm")
    }
    cells = tuple(
        GridCell(name, MethodConfig(name=name), Budget.of_ratio(ratio), "niah_single_2", "t", "")
        for name, ratio in (("full", 0.0), ("knorm", 0.5))
    )
    provenance = {"git_commit": "t", "versions": {}, "host": "t"}
    with torch.inference_mode():
        rows, _ = CellEvaluator(spec, backbone, methods, provenance).evaluate(
            [Task(next(iter(benchmark.samples(1, build))), cells)]
        )
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_validation_scores_are_in_the_history(config, tmp_path):
    evaluated = config.model_copy(
        update={"evaluate_samples": 1, "evaluate_lengths": (512,), "evaluate_every": 4, "heldout": "essays-train"}
    )
    run(evaluated, RankContext(tmp_path))
    scored = [row["step"] for row in History(tmp_path / "history").read() if "exact_niah_512" in row]
    assert scored == [3, 7]
