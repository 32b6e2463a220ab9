"""The folder that `indexmem export` writes: what it holds, that it needs little, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_backbone

from indexmem.cli import main
from indexmem.config.modules import IndexerConfig
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.export import folder as writer
from indexmem.models.assets import SHIPPED

FILES = ["config.json", "indexer.safetensors", "indexmem_export.py"]
# Of what is not in the standard library, only these are found.
ALONE = """
import sys
allowed = {*sys.stdlib_module_names, "torch", "safetensors", "indexmem_export", "typing_extensions", "numpy", "sympy",
           "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock", "packaging", "torchgen", "functorch",
           "_distutils_hack", "pkg_resources", "setuptools", "optree"}
class Blind:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blind())
import torch
from indexmem_export import ExportedIndexer
assert not {"indexmem", "transformers", "kvpress", "pydantic"} & {name.split(".")[0] for name in sys.modules}
indexer = ExportedIndexer.load(sys.argv[1])
states = torch.randn(6, 40, 256)
scores = torch.stack([indexer.scores(layer, states[layer]) for layer in range(6)])
print([len(head) for layer in indexer.keep(scores, ratio=0.75) for head in layer])
"""


def run(*words) -> int:
    return main(["export", *map(str, words)])


def test_the_folder_holds_three_files_that_need_torch_and_safetensors_alone(tmp_path, capsys):
    assert run("testbed-modules", "--to", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert "docs/serving.md" in capsys.readouterr().out
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["format"], config["checkpoint"]["backbone"]) == (1, "testbed")
    assert config["keep"] == {"share": "model", "floor": 0.1, "sinks": 4}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "out")],
        capture_output=True, text=True, cwd=tmp_path / "out", env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)) == 6 * 4 * 10


def test_a_folder_may_be_moved_and_names_no_machine(tmp_path):
    shutil.copytree(SHIPPED / "testbed-modules", tmp_path / "mine")
    assert run(tmp_path / "mine", "--to", tmp_path / "a") == 0
    config = (tmp_path / "a" / "config.json").read_text()
    assert str(tmp_path) not in config
    assert json.loads(config)["checkpoint"]["name"] == "mine"


@pytest.mark.parametrize("ready", ["folder", "file"])
def test_what_exists_is_left_alone(ready, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir() if ready == "folder" else out.write_text("mine")
    assert run("testbed-modules", "--to", out) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_unknown_checkpoint_is_a_sentence(tmp_path, capsys):
    assert run("no-such-modules", "--to", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert "'no-such-modules' is neither" in error
    assert "testbed-modules" in error
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_an_indexer_is_a_sentence(tmp_path, capsys):
    geometry = tiny_backbone().geometry
    stack = IndexerStack(IndexerShape.of(IndexerConfig(), geometry), geometry)
    save_modules({"locret": stack}, tmp_path / "trained")
    assert run(tmp_path / "trained", "--to", tmp_path / "out") == 2
    assert "holds no trained 'indexer'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_config", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("testbed-modules", "--to", tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run("testbed-modules", "--to", tmp_path / "file" / "out") == 2
    assert "file" in capsys.readouterr().err


def test_the_file_says_what_it_needs():
    text = Path(writer.portable.__file__).read_text()
    assert "import indexmem" not in text
    assert "from indexmem" not in text
