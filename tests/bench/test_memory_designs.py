"""The comparison of memory designs: which designs a command line names, what fits in its time, what it writes."""

import json
import sys
from dataclasses import replace

import design_tasks
import memory_designs
import numpy as np
import pytest
import torch
from design_list import DESIGNS, choose, equal_tokens, shape_of
from design_scores import more_tokens, summarise
from design_tasks import compare
from design_training import affordable_steps, train, with_schedule
from memory_designs import load_designs
from tiny_models import save_tiny_model, tiny_backbone

from indexmem.errors import UserError

SMOLLM2 = replace(tiny_backbone().geometry, layers=30, hidden_size=576, heads=9, kv_heads=3, head_dim=64)


def test_an_exact_name_is_that_design_and_a_part_all_that_hold_it():
    assert list(choose(["linear, add, kv_flat, 42"])) == ["linear, add, kv_flat, 42"]
    assert len(choose(["linear"])) == 6
    assert list(choose(["slots, joint, post-RoPE, 15", "paper"])) == [
        "paper: linear, add, kv_flat, pre-RoPE, d/8",
        "slots, joint, post-RoPE, 15",
    ]
    assert choose([]) == dict(DESIGNS)
    with pytest.raises(UserError, match="No design is called 'cubic'"):
        choose(["slots", "cubic"])


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("slots, joint, post-RoPE, 63", 64),
        ("slots, joint, post-RoPE, 31", 32),
        ("slots, joint, post-RoPE, 15", 16),
        ("linear, add, model, 42", 64),
        ("positive, joint, post-RoPE, 126", 64),
        ("paper: linear, add, kv_flat, pre-RoPE, d/8", 109),
    ],
)
def test_equal_bytes_on_smollm2(name, tokens):
    assert equal_tokens(shape_of(name, SMOLLM2), SMOLLM2) == tokens


def test_the_schedule_is_as_long_as_the_time_allows():
    assert affordable_steps(400, per_step=1.0, seconds_left=100.0) == 90
    assert affordable_steps(50, per_step=1.0, seconds_left=100.0) == 50
    with pytest.raises(UserError, match="more --minutes"):
        affordable_steps(400, per_step=1.0, seconds_left=1.0)
    schedule = with_schedule({"distill": {}}, 33, 1e-3).distill.schedule
    assert (schedule.steps, schedule.warmup, schedule.decay) == (33, 3, 13)


def test_shares_removed_and_their_interval():
    sequences = [
        {("half", 0.5): np.array([[1.0, 2.0], [3.0, 6.0]]), ("uneven", 0.5): np.array([[0.0, 2.0], [6.0 * n, 6.0]])}
        for n in (0, 1)
    ]
    uneven, half = summarise(sequences)
    assert (half["design"], half["mean_over_layers"], half["low"], half["high"]) == ("half", 0.5, 0.5, 0.5)
    assert (uneven["mean_over_layers"], uneven["pooled"], uneven["worst_layer"]) == (0.75, 0.625, 0.5)
    assert uneven["low"] == pytest.approx(0.5) and uneven["high"] == pytest.approx(1.0)


def text_file(folder, words: int):
    path = folder / "text.txt"
    rng = np.random.default_rng(1)
    path.write_text(" ".join(f"w{n}" for n in rng.integers(300, size=words)))
    return str(path)


def test_a_run_that_is_out_of_time_leaves_what_it_trained(tmp_path):
    settings = {"distill": {"texts": [text_file(tmp_path, 4000)], "length": 96, "query_tokens": 24}}
    experiment, names = with_schedule(settings, 6, 1e-3), ["slots, joint, post-RoPE, 15"]
    stopped, _ = train(experiment, names, tiny_backbone(), tmp_path / "stopped", deadline=0.0)
    whole, rows = train(experiment, names, tiny_backbone(), tmp_path / "whole", deadline=float("inf"))
    assert (stopped.name, whole.name, len(rows)) == ("step-00000001", "step-00000006", 6)
    maps = [load_designs(folder, names, tiny_backbone())[names[0]][0].query_map_Qdd for folder in (stopped, whole)]
    assert maps[0].any() and not torch.equal(*maps)


def test_one_command_trains_and_measures(tmp_path, monkeypatch):
    model, text = save_tiny_model(tmp_path / "model"), text_file(tmp_path, 4000)
    chosen = ["linear, add, model, 42", "linear, add, kv_flat, model space, 42", "slots, joint, post-RoPE, 15"]
    command = f"x --out {tmp_path / 'out.json'} --work {tmp_path / 'work'} --model {model} --device cpu --steps 3"
    command += f" --batch 1 --context 72 --new 24 --sequences 2 --minutes 60 --texts {text} --heldout {text} --designs"
    monkeypatch.setattr(sys, "argv", [*command.split(), *chosen])
    memory_designs.main()
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["training"]["steps"] == 3 and set(result["training"]["losses"]) == set(chosen)
    names = {row["design"] for row in result["rows"]}
    assert names >= {*chosen, "slots, joint, post-RoPE, 15, untrained maps", more_tokens(16)}
    for row in result["rows"]:
        assert row["sequences"] == 2 and row["low"] <= row["mean_over_layers"] <= row["high"]
    rows = {(row["design"], row["ratio"]): row for row in result["rows"]}
    assert rows["slots, joint, post-RoPE, 15", 0.5]["mean_over_layers"] > 0.2
    assert rows[more_tokens(16), 0.9]["mean_over_layers"] > 0.2

    # Task scores of the same designs, from the checkpoint that the run left.
    checkpoint = max((tmp_path / "work").glob("step-*"))
    command = f"x --load {checkpoint} --out {tmp_path / 'tasks.json'} --model {model} --device cpu --haystack {text}"
    command += " --samples 2 --length 800 --new 4 --ratios .5 --benchmarks niah_single_1 niah_multikey_1"
    monkeypatch.setattr(sys, "argv", command.split())
    design_tasks.main()
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert {(row["design"], row["budget"]) for row in tasks["rows"]} == {(name, "50%") for name in chosen}
    for row in tasks["rows"]:
        assert row["difference"] == pytest.approx(row["score"] - row["baseline_score"])
        assert row["low"] <= row["difference"] <= row["high"]


def test_a_lift_is_told_apart_from_noise():
    """Ten samples of two benchmarks: one design is right where more tokens are not, the other one as often."""
    right, wrong = [1.0] * 10, [0.0] * 10
    scores = {
        ("good", "50%"): {"a": right, "b": right},
        ("same", "50%"): {"a": right, "b": wrong},
        ("tokens", "50%"): {"a": wrong, "b": right},
    }
    good, same = compare(scores, {"good": "tokens", "same": "tokens"}, [0.5])
    assert (good["score"], good["baseline_score"], good["difference"], same["difference"]) == (100, 50, 50, 0)
    assert good["p_adjusted"] < 0.01 and good["low"] > 0
    assert same["p_adjusted"] == 1.0 and same["low"] < 0 < same["high"]
