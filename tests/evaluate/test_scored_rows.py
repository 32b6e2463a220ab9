"""What a row keeps of how its answer was scored."""

from __future__ import annotations

import json

import pytest

from indexmem.benchmarks.base import Sample
from indexmem.benchmarks.registry import get_benchmark
from indexmem.evaluate.rows import scored


@pytest.mark.parametrize(
    ("benchmark", "references", "needed"),
    [("vt", ("QKR", "ZLP"), "all"), ("vt", ("QKR",), None), ("qa_1", ("Paris", "the city of Paris"), "any")],
)
def test_a_row_says_whether_all_of_several_references_are_needed(benchmark, references, needed):
    found = get_benchmark(benchmark)
    sample = Sample(f"{benchmark}/0", benchmark, "c", "q", "", references, 8, labels={"depth": 3})
    labels = json.loads(scored(found, references[0], sample)["labels"])
    assert labels.pop("references", None) == needed
    assert labels == {"depth": 3}
