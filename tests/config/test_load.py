"""Reading specs: whatever is wrong with the file or a value is one message that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from indexmem.config.load import load
from indexmem.config.nightly import load_nightly
from indexmem.config.spec import cache_folder, home
from indexmem.errors import UserError


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "spec.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


FILES = {
    "another encoding": (b"name: caf\xe9\n", r"spec\.yaml is not UTF-8: .* at byte 9\. Save it as UTF-8"),
    "UTF-16": ("name: x".encode("utf-16"), r"spec\.yaml is not UTF-8"),
    "a section twice": (
        "grid: {methods: [knorm]}\nname: x\ngrid: {samples: 3}\n",
        "the key 'grid' comes twice, line 3, column 1",
    ),
    "a setting twice": ("grid:\n  samples: 3\n  samples: 4\n", "the key 'samples' comes twice, line 3, column 3"),
    "a value within itself": ("grid: &a {samples: *a}\n", "a value holds itself"),
    "a month 13": ("name: 2026-13-01\n", "is not valid YAML: month must be in"),
    "a control character": (b"name: a\x01b\n", "is not valid YAML: unacceptable character"),
    "brackets without end": ("name: " + "[" * 500, "is not valid YAML"),
    "a NUL in a name": ('extends: "a\\0b"\n', "cannot be the name of a spec file"),
    "half a character": ('grid: {haystack: "\\ud83d"}\n', r"'grid\.haystack' is '.ud83d', which is no text"),
    "a NUL in a path": ('run: {root: "a\\0b"}\n', r"'run\.root' is 'a.x00b', which is no text"),
    "a number as key": ("grid: {1: 2}\n", r"'grid\.1': keys should be strings"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_spec(tmp_path: Path, name: str) -> None:
    content, complaint = FILES[name]
    with pytest.raises(UserError, match=complaint):
        load(written(tmp_path, content))


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("grid={samples: 3, samples: 4}", "the key 'samples' comes twice"),
        ("grid.methods=[{name: knorm, params: {x: .nan}}]", r"'grid\.methods\.0\.params\.x': .*finite number, got nan"),
        ("grid.methods=[{name: knorm, params: {x: -.inf}}]", r"params\.x': .* got -inf"),
        ("grid.methods=[{name: knorm, params: {x: 2026-01-01}}]", r"params\.x': input was not a valid JSON value"),
        ("grid.methods=[{name: knorm, params: {api_key: x}}]", r"params\.api_key' looks like a secret"),
        ("distill.schedule.peak_lr=.nan", r"peak_lr': .* got nan"),
        ("distill.grad_clip='inf'", r"'distill\.grad_clip': input should be a finite number"),
        ("sweep.axes={distill.seed: [1, .nan]}", r"seed\.1': .* got nan"),
        ("sweep.axes={distill.seed: [2026-01-01]}", r"lists datetime\.date\(2026, 1, 1\); values are numbers"),
        ("sweep.axes={distill.seed: {low: 1, high: 'inf'}}", "a range needs two numbers"),
        ("run.root=~nobody-of-this-name", "'~nobody-of-this-name': no home folder of this user is known here"),
        ("grid.haystack=~nobody-of-this-name/x", "no home folder of this user is known here"),
        ("distill.texts=[~nobody-of-this-name/x]", "no home folder of this user is known here"),
    ],
)
def test_a_value_that_no_setting_can_have(tmp_path: Path, override: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load(written(tmp_path, ""), [override])


def test_what_yaml_allows_is_read(tmp_path: Path) -> None:
    override = "grid={<<: {samples: 3, seed: 1}, samples: 4}"
    spec = load(written(tmp_path, b"\xef\xbb\xbfname: x\n"), [override])
    assert (spec.name, spec.grid.samples, spec.grid.seed) == ("x", 4, 1), "a merged key may be said again"
    assert load(written(tmp_path, ""), ["grid.samples=3", "grid.samples=4"]).grid.samples == 4


def test_a_text_instead_of_a_name_is_no_path(tmp_path: Path) -> None:
    assert load(written(tmp_path, ""), [f"grid.haystack={'x' * 5000}"]).grid.haystack == "x" * 5000
    with pytest.raises(UserError, match="cannot be the name of a spec file"):
        load(tmp_path / ("x" * 5000))


def test_other_schemas_are_read_alike(tmp_path: Path) -> None:
    spec = "suites: [{name: a, spec: x.yaml}]\nbudget: {wall_hours: .nan}\n"
    with pytest.raises(UserError, match=r"'budget\.wall_hours': input should be a finite number"):
        load_nightly(written(tmp_path, spec))


def test_homes_of_unknown_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEXMEM_HOME", "~nobody-of-this-name/x")
    with pytest.raises(UserError, match="no home folder of this user"):
        home()
    monkeypatch.setenv("INDEXMEM_CACHE", "~nobody-of-this-name/x")
    with pytest.raises(UserError, match="no home folder of this user"):
        cache_folder()


def test_of_several_extended_files_later_ones_go_over_earlier_ones(tmp_path):
    (tmp_path / "a.yaml").write_text("name: a\ngrid: {samples: 1, length: 10}\n")
    (tmp_path / "b.yaml").write_text("name: b\ngrid: {length: 20}\n")
    (tmp_path / "c.yaml").write_text("extends: [a.yaml, b.yaml]\nindexer: {dim: 2, pair_term: true}\n")
    spec = load(tmp_path / "c.yaml")
    assert (spec.name, spec.grid.samples, spec.grid.length, spec.indexer.dim) == ("b", 1, 20, 2)
    (tmp_path / "b.yaml").write_text("extends: c.yaml\n")
    with pytest.raises(UserError, match=r"goes in a circle: c\.yaml -> b\.yaml -> c\.yaml"):
        load(tmp_path / "c.yaml")


def test_a_name_may_hold_model_and_length(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("name: run-{model}-{length}\n")
    assert load(path).name == "run-smollm2-135m-instruct-4096"
    assert load(path, ["model.id=org/A model@1", "grid.length=512"]).name == "run-A-model-1-512"
    with pytest.raises(UserError, match="'name': string should match"):
        load(path, ["name=x-{other}"])
