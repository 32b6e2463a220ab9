"""The report of the designs bench: what a table says of each design, and which designs a chart shows."""

import json
import sys
from pathlib import Path

import design_report
import pytest
from design_list import DESIGNS
from design_scores import RATIOS

DESIGN, TOKENS = "slots, joint, post-RoPE, 63", "64 more tokens, no memory"


def rows_of(design, mean, parameters, worst=0.25):
    return [
        {
            "design": design,
            "ratio": ratio,
            "mean_over_layers": mean,
            "low": mean - 0.01,
            "high": mean + 0.01,
            "worst_layer": worst,
            "equal_tokens": 64,
            "state_numbers": 24570,
            "parameters_per_layer": parameters,
        }
        for ratio in RATIOS
    ]


def results(mean=0.7):
    untrained = rows_of(f"{DESIGN}{design_report.UNTRAINED}", -15.06, 62034, worst=-91.0)
    return rows_of(TOKENS, 0.12, 0, worst=-0.0001) + untrained + rows_of(DESIGN, mean, 62034)


def test_a_table_lists_the_best_design_first_with_its_costs_and_intervals():
    lines = design_report.table(results()).splitlines()[2:]
    assert lines[0] == (
        f"| {DESIGN} | 24,570 (64 tokens) | 62,034 | .700 [.690, .710] | .700 [.690, .710] | .700 [.690, .710] |"
        " .250 / .250 / .250 |"
    )
    assert ".120 [.110, .130]" in lines[1] and ".000 / .000 / .000" in lines[1]
    assert "-15.1 [-15.1, -15.1]" in lines[2] and "-91.0 / -91.0 / -91.0" in lines[2]


def test_one_command_writes_tables_and_a_chart_of_trained_designs(tmp_path, monkeypatch, capsys):
    for name, mean in (("first", 0.7), ("second", 0.6)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": results(mean)}))
    svg = tmp_path / "chart.svg"
    monkeypatch.setattr(
        sys, "argv", ["x", str(tmp_path / "first.json"), str(tmp_path / "second.json"), "--chart", str(svg)]
    )
    design_report.main()
    assert capsys.readouterr().out.count("| design |") == 2
    drawn = svg.read_text()
    assert drawn.count(DESIGN) == 1 and "untrained" not in drawn
    assert f"{DESIGN} (64 tokens)" in drawn.replace("  ", " ")


def test_a_design_without_its_equal_bytes_baseline_is_refused(tmp_path):
    with pytest.raises(KeyError, match="64 more tokens"):
        design_report.chart([rows_of(DESIGN, 0.7, 62034)], tmp_path / "chart.svg")


def test_a_task_table_puts_the_best_first_and_stars_what_is_significant():
    def row(design, budget, score, p):
        found = {"design": design, "budget": budget, "score": score, "baseline_score": 50.0, "p_adjusted": p}
        return found | {"difference": score - 50, "low": score - 55, "high": score - 45}

    rows = [row("b", "r=0.75", 40.0, 0.2), row("b", "r=0.9", 52.5, 1.0), row("a", "r=0.75", 61.0, 0.01)]
    lines = design_report.task_table([*rows, row("a", "r=0.9", 45.0, 0.06)]).splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|") == 6
    assert lines[2] == "| a | 61.0, 50.0 | +11.0 [+6.0, +16.0]\* | 45.0, 50.0 | -5.0 [-10.0, +0.0] |"
    assert lines[3].startswith("| b | 40.0, 50.0 | -10.0 [-15.0, -5.0] |")


def test_designs_in_the_stored_results_are_those_of_the_bench():
    stored = sorted((Path(__file__).parents[2] / "docs/results/memory_designs").glob("*.json"))
    named = {row["design"] for path in stored for row in json.loads(path.read_text())["rows"]}
    trained = {name for name in named if not name.endswith((design_report.UNTRAINED, "no memory"))}
    assert trained == set(DESIGNS)
