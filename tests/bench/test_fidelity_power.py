"""Samples that tell two methods apart, and that the page shows what is in its files."""

import json
from pathlib import Path

import pandas as pd
import pytest
from fidelity_power import _needed, show

DOCS = Path(__file__).parents[2] / "docs" / "results"


def test_the_number_of_samples_is_that_of_a_paired_test():
    """Of differences with a mean of 0.1 and a spread of 0.5: (2.8 * 5)^2."""
    difference = pd.Series([0.6, -0.4] * 50)
    exact = (2.8 * difference.std(ddof=1) / 0.1) ** 2
    assert exact == pytest.approx(198, abs=1)
    assert _needed(difference) in (int(exact), int(exact) + 1)
    assert _needed(pd.Series([0.0] * 9)) is None, "equal everywhere: no number is enough"


@pytest.mark.parametrize("name", ["ruler75", "ruler90", "text75"])
def test_the_page_has_the_tables_of_its_files(name):
    found = json.loads((DOCS / "bench" / f"fidelity-{name}.json").read_text())
    assert show(found) in (DOCS / "fidelity.md").read_text(encoding="utf-8")
