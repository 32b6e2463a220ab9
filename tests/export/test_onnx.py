"""The scorer as ONNX."""

import pytest
import torch
from tiny_models import tiny_backbone

from indexmem.cli import main
from indexmem.config.modules import IndexerConfig
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import save_modules
from indexmem.eviction.indexer import IndexerShape, IndexerStack
from indexmem.export import onnx as to_onnx
from indexmem.export.folder import export_checkpoint
from indexmem.export.onnx import TokenScorer
from indexmem.export.portable import ExportedIndexer


def checkpoint(folder, **config) -> str:
    geometry = tiny_backbone().geometry
    torch.manual_seed(0)
    stack = IndexerStack(IndexerShape.of(IndexerConfig(**config), geometry), geometry)
    return str(save_modules({"indexer": stack}, folder))


@pytest.mark.parametrize("config", [{}, {"share_every": 2}, {"scope": "layer"}, {"reads": "key_value"}])
@pytest.mark.parametrize("tokens", [1, 9])
def test_all_layers_are_scored_in_one_go(config, tokens, tmp_path):
    indexer = ExportedIndexer.load(export_checkpoint(checkpoint(tmp_path / "a", **config), tmp_path / "b"))
    scorer = TokenScorer(indexer)
    states_NTX = torch.randn(indexer.model["layers"], tokens, scorer.in_NXw.shape[1])
    expected = indexer.scores_of_all(list(states_NTX))
    torch.testing.assert_close(scorer(states_NTX), expected)


def test_a_pair_term_is_refused(tmp_path, capsys):
    folder = checkpoint(tmp_path / "a", pair_term=True)
    assert main(["export", folder, "--to", str(tmp_path / "b"), "--onnx"]) == 2
    assert "has a pair term" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    def need(extra, *_):
        raise UserError(f"pip install 'indexmem[{extra}]'")

    monkeypatch.setattr(to_onnx, "need", need)
    with pytest.raises(UserError, match=r"indexmem\[onnx\]"):
        export_checkpoint(checkpoint(tmp_path / "a"), tmp_path / "b", onnx=True)
    assert not (tmp_path / "b").exists()


def test_onnxruntime_gives_the_same_scores(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    folder = export_checkpoint(checkpoint(tmp_path / "a"), tmp_path / "b", onnx=True)
    indexer, session = ExportedIndexer.load(folder), runtime.InferenceSession(str(folder / "scorer.onnx"))
    for tokens in (1, 2, 33):
        states_NTX = torch.randn(indexer.model["layers"], tokens, indexer.model["hidden_size"])
        (found,) = session.run(None, {"states": states_NTX.numpy()})
        expected = indexer.scores_of_all(list(states_NTX))
        torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-4)
