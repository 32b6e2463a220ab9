"""The prefill bench: one command on a CPU writes a row per length and ratio, with counts that belong to the run."""

import json
import sys

import sparse_prefill


def test_one_command_measures_every_length_and_ratio(tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    sizes = "--hidden 32 --mlp 64 --layers 2 --heads 4 --kv-heads 2 --head-dim 8"
    command = f"x {sizes} --lengths 64,128 --ratios 0.5,0.9 --repeats 1 --out {out}"
    monkeypatch.setattr(sys, "argv", command.split())
    sparse_prefill.main()
    result = json.loads(out.read_text())
    assert [(row["tokens"], row["ratio"]) for row in result["rows"]] == [
        (n, r) for n in (64, 128) for r in (0, 0.5, 0.9)
    ]
    assert "random weights" in result["note"] and result["device"] == "cpu"
    plain, half, most = result["rows"][3:]
    assert plain["pairs"] == 128 * 129 // 2 and plain["rows"] == 128 and plain["indexer_tflop"] == 0
    for row, kept in ((half, 64), (most, 12)):
        assert kept <= row["rows"] <= min(128, 2 * kept)
        assert kept * (kept + 1) // 2 <= row["pairs"] <= kept * 128
        assert row["seconds"] > row["score_s"] > 0 and 0 < row["indexer_tflop"] < row["tflop"]
    assert most["tflop"] < half["tflop"] < plain["tflop"] + half["indexer_tflop"]
