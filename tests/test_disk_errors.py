"""Folders that cannot be written to: one message and exit code 2, before Ray starts where that can be known."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import yaml
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.files import write_whole


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for verb in ("distill", "evaluate", "sweep"):
        starter = f"indexmem.commands.{verb}.ray_cluster"
        monkeypatch.setattr(starter, lambda *a, **k: pytest.fail("Ray was about to start"))
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    content = {
        "name": "tiny",
        "model": {"id": str(tmp_path / "model")},
        "distill": {"texts": [str(tmp_path / "text.txt")], "length": 96, "workers": 1},
        "grid": {
            "methods": ["full", "knorm"],
            "ratios": [0.5],
            "benchmarks": ["niah_single_1"],
            "length": 640,
            "samples": 1,
            "haystack": str(tmp_path / "text.txt"),
        },
        "sweep": {"objectives": ["score"]},
        "run": {"root": str(tmp_path / "runs")},
    }
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


VERBS = {
    "eval": ["eval"],
    "a dry run": ["eval", "--dry-run"],
    "distill": ["distill"],
    "sweep": ["sweep", "grid.methods=[indexer]", "indexer.pair_term=true", "sweep.axes={indexer.dim: [2, 4]}"],
    "report": ["report"],
    "sync": ["sync"],
}


def call(spec: Path, words: list[str]) -> int:
    verb, *rest = words
    return main([verb, str(spec), *rest])


@pytest.mark.parametrize("verb", VERBS)
def test_a_root_that_is_a_file(spec: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    (spec.parent / "runs").write_text("in the way")
    for root in (spec.parent / "runs", spec.parent / "runs" / "below"):
        assert call(spec, [*VERBS[verb], f"run.root={root}"]) == 2
        said = capsys.readouterr().err
        assert f"error: {root} cannot be a folder: {spec.parent / 'runs'} is a file. Name another folder." in said


def test_a_home_that_is_a_file(spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (spec.parent / "home").write_text("in the way")
    monkeypatch.setenv("INDEXMEM_HOME", str(spec.parent / "home"))
    monkeypatch.delenv("INDEXMEM_CACHE", raising=False)
    assert call(spec, ["eval", "--dry-run"]) == 2
    assert "home is a file. Name another folder." in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["eval", "distill", "sweep"])
def test_a_root_that_is_read_only_is_found_before_ray_starts(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def read_only(path: Path, content: object, **_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("indexmem.files.write_whole", read_only)
    assert call(spec, VERBS[verb]) == 2
    said = capsys.readouterr().err
    assert (
        f"error: {spec.parent / 'runs'}" in said and "Read-only file system. Free space there, or set run.root" in said
    )


def test_a_disk_that_is_full_in_the_middle(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as writing says it: without a name

    page = spec.parent / "runs" / "reports" / "tiny.html"
    monkeypatch.setattr("indexmem.commands.report.report_spec", lambda *_, **__: write_whole(page, "page"))
    monkeypatch.setattr(os, "replace", full)
    assert call(spec, ["report"]) == 2
    assert f"error: {page}: No space left on device. Free space there" in capsys.readouterr().err
    assert list(page.parent.iterdir()) == []


def test_other_errors_keep_their_traceback(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    monkeypatch.setattr("indexmem.commands.report.report_spec", broken)
    with pytest.raises(ConnectionResetError):
        call(spec, ["report"])
