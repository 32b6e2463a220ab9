"""What granularity.py counts, and the tables of its files."""

import pytest
import torch
from granularity import blocks_held, summary
from granularity_tables import tables

from indexmem.eviction.context import RowCache

NOTHING = torch.zeros(2, 40, 8)


def test_a_page_is_free_when_nothing_in_its_scope_is_kept():
    """40 tokens, pages of 16: two layers, two heads; a head that keeps fewer repeats its last position."""
    kept = [torch.tensor([[0, 1, 2], [0, 17, 17]]), torch.tensor([[0, 3, 39], [1, 1, 1]])]
    row = RowCache([NOTHING] * 2, [NOTHING] * 2, kept, counts_H=[torch.tensor([3, 2]), torch.tensor([3, 1])])
    held = blocks_held(row, 40, 16)
    assert held == pytest.approx({"head": 6 / 12, "layer": 4 / 6, "model": 1.0})


def row(cell, sample, score, status="ok"):
    held = dict.fromkeys(("head", "layer", "model"), 0.5)
    said = {"cell_id": cell, "benchmark": "vt", "sample_id": sample, "status": status, "score": score}
    return said | {"measured_ratio": 0.5, "blocks_held": held, "error_message": "why"}


def test_tables_compare_on_samples_that_all_cells_answered():
    cells = {"full@0%": 1.0, "knorm@head/1@50%": 1.0, "knorm@layer/16@50%": 0.0, "knorm@head/16@50%": 1.0}
    rows = [row(cell, f"s{n}", score) for cell, score in cells.items() for n in range(4)]
    rows += [row(cell, "s9", 0.0, "failed" if cell.startswith("full") else "ok") for cell in cells]
    rows += [row("knorm@layer/1@50%", f"s{n}", 1.0) for n in range(4)]
    found = summary(rows)
    assert found["samples_left_out"] == 1 and found["errors"] == ["why"]
    said = {"methods": ["knorm"], "granularities": ["head", "layer"], "blocks": [1, 16], "ratios": [0.5], "page": 16}
    text = tables({"arguments": said, "device": "cpu", "commit": "abcdefghi", "rows": len(rows)} | found)
    lines = text.splitlines()
    assert lines[0] == "| method | set, block | 50% |"
    assert lines[2].startswith("| `knorm` | head, 1 | 100 (") and ":" not in lines[2]
    assert lines[5].startswith("| `knorm` | layer, 16 | 0 (") and "(-100.0: -100.0 to" in lines[5]
    assert "| `knorm` | layer, 16 | 50 / 50 / 50 |" in lines
    assert "samples: vt 4" in lines[-1]
