"""What a job brings along: code, commit, dependencies, variables."""

from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import indexmem
from indexmem.cluster import job
from indexmem.cluster.job import dependencies, environment, parse_variables
from indexmem.errors import UserError


def test_code_that_travels_names_its_commit_and_installed_code_names_its_own(monkeypatch):
    monkeypatch.setattr(job, "provenance", lambda: {"git_commit": "abc-dirty"})
    sent = environment(Path("/staged"), {"INDEXMEM_HOME": "/shared"})
    assert sent["working_dir"] == "/staged"
    assert sent["py_modules"] == [str(Path(indexmem.__file__).parent)]
    assert sent["env_vars"] == {"INDEXMEM_HOME": "/shared", "INDEXMEM_GIT_COMMIT": "abc-dirty"}
    assert environment(Path("/staged"), {"INDEXMEM_GIT_COMMIT": "mine"})["env_vars"] == {"INDEXMEM_GIT_COMMIT": "mine"}
    assert environment(Path("/staged"), {}, send_code=False) == {"working_dir": "/staged"}


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_dependencies_are_those_of_the_package_with_all_extras_and_without_ray(installer):
    texts = [text for text in requires("indexmem") if "extra" not in text or "extra == 'all'" in text]
    stated = {Requirement(text).name for text in texts}
    listed = environment(Path("/staged"), {}, installer=installer)[installer]
    assert {Requirement(text).name for text in listed} == stated - {"ray"}
    assert {"torch", "mlflow", "plotly", "wonderwords"} <= stated
    assert listed == dependencies()


def test_variables_are_names_with_values():
    assert parse_variables(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in ("A", "=1", "1A=2", "A B=1"):
        with pytest.raises(UserError, match="not of the form NAME=VALUE"):
            parse_variables([wrong])
