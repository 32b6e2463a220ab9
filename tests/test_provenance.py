"""Provenance names the commit of the package's own checkout, and never fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from indexmem import provenance as module
from indexmem.provenance import COMMIT_VARIABLE, provenance


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one committed package folder, which stands for the installed package."""
    package = tmp_path / "repository" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=package.parent, check=True)
    monkeypatch.setattr(module, "_SOURCE", package)
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    return package


def test_commit_and_dirty_flag_follow_the_package(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as inside a git hook
    clean = provenance()
    assert len(clean["git_commit"]) == 40
    assert clean["git_dirty"] is False
    (checkout.parent / "notes.txt").write_text("outside the package")
    assert provenance() == clean
    (checkout / "new_module.py").write_text("")
    assert provenance()["git_commit"] == clean["git_commit"] + "-dirty"
    assert provenance()["git_dirty"] is True


def test_a_copy_inside_another_repository_is_not_that_repository(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout.parent / "site-packages" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    monkeypatch.setattr(module, "_SOURCE", installed)
    assert provenance()["git_commit"] == ""
    monkeypatch.setenv(COMMIT_VARIABLE, "abc-dirty")
    assert (provenance()["git_commit"], provenance()["git_dirty"]) == ("abc-dirty", True)


def test_without_git_nothing_fails(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(module, "PACKAGES", ("indexmem", "no-such-package"))
    found = provenance()
    assert found["git_commit"] == ""
    assert found["versions"].keys() == {"python", "indexmem"}
    assert found["host"]


def test_it_imports_no_torch() -> None:
    code = "import sys; from indexmem.provenance import provenance; provenance(); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
