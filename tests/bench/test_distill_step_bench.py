"""The bench of a distillation step: one command writes a row per length, against as many passes as asked for."""

import json
import sys

import distill_step
import pytest


@pytest.mark.parametrize(
    ("options", "forwards"),
    [("", 2), ("--source logprobs", 1), ("--source logits", 1), ("--source reconstruction --compare-forwards 3", 3)],
)
def test_one_command_compares_a_step_with_forward_passes(tmp_path, monkeypatch, capsys, options, forwards):
    out = tmp_path / "out.json"
    sizes = "--device cpu --geometry tiny --lengths 40 64 --scopes kv_head --products float32 --repeats 1"
    monkeypatch.setattr(sys, "argv", f"x {sizes} {options} --out {out}".split())
    distill_step.main()
    result = json.loads(out.read_text())
    assert [row["tokens"] for row in result["rows"]] == [40, 64]
    assert not any("error" in row for row in result["rows"]), result
    for row in result["rows"]:
        assert row["forwards"] == forwards
        assert row["ratio"] == pytest.approx(row["step_seconds"] / (forwards * row["forward_seconds"]))
    assert len(capsys.readouterr().out.splitlines()) == 3
