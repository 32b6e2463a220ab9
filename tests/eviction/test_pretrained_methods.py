"""Scorers with weights of others: random weights in the published layout, kept tokens equal kvpress' own."""

from pathlib import Path

import pytest
import torch
from kept_rows import kept_tokens
from kvpress import ExpectedAttentionStatsPress, KVzapPress, QFilterPress
from kvpress.presses.kvzap_press import KVzapModel
from kvpress.presses.qfilter_press import QFilters
from kvpress_oracle import kvpress_cache, kvpress_model, same_vectors
from method_zoo import save_weights
from tiny_models import FULL_FAMILIES, SLIDING_FAMILIES, random_ids, tiny_backbone

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.errors import UserError
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

LENGTH = 230
RATIOS = (0.25, 0.9)
NAMES = ("kvzap", "qfilter", "expected_attention_stats")


def their_press(name, folder, ratio, monkeypatch):
    if name == "kvzap":
        press = KVzapPress(compression_ratio=ratio)
        press.kvzap_model_name = "nvidia/KVzap-mlp-tiny"  # what it would load for our model: loaded already
        press.kvzap_model = KVzapModel.from_pretrained(folder)
        return press
    if name == "qfilter":
        loaded = QFilters.from_pretrained(folder).q_filters
        monkeypatch.setattr(QFilterPress, "load_q_filters", staticmethod(lambda model_name: loaded))
        return QFilterPress(compression_ratio=ratio)
    return ExpectedAttentionStatsPress(compression_ratio=ratio, stats_folder=folder)


@pytest.mark.parametrize("family", FULL_FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_kept_tokens_equal_kvpress(name, family, tmp_path, monkeypatch):
    backbone = tiny_backbone(family)
    folder = save_weights(name, backbone.geometry, tmp_path)
    method = make_method(MethodConfig(name=name, params={"weights": folder}), MethodContext(backbone.geometry))
    done = prefill(backbone, random_ids(LENGTH), {"m": method}, sinks=0)
    for ratio in RATIOS:
        row = method.compress(done.context, done.rankings_HL["m"], LENGTH * (1 - ratio))
        press = their_press(name, folder, ratio, monkeypatch)
        theirs = kvpress_cache(kvpress_model(family), press, random_ids(LENGTH))
        for layer, cached in enumerate(theirs.layers):
            ours_HKd, _ = kept_tokens(row, layer)
            assert all(same_vectors(*pair) for pair in zip(ours_HKd, cached.keys[0]))


@pytest.mark.parametrize("family", SLIDING_FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_layers_between_sliding_windows_use_their_own_weights(name, family, tmp_path):
    """Published weights number all layers; with those of one layer changed, that layer's ranking changes alone."""
    backbone = tiny_backbone(family)
    folder = save_weights(name, backbone.geometry, tmp_path)
    build = lambda: make_method(  # noqa: E731
        MethodConfig(name=name, params={"weights": folder}), MethodContext(backbone.geometry)
    )
    plain, changed = build(), build()
    last = backbone.geometry.layers + backbone.geometry.sliding_layers - 2  # the last layer with full attention
    with torch.no_grad():
        if name == "kvzap":
            changed.press.kvzap_model.layers[last][2].weight.neg_()
        elif name == "qfilter":
            changed.press.q_filters[last].neg_()
        else:
            changed.press.mu[last].neg_()
    done = prefill(backbone, random_ids(LENGTH), {"plain": plain, "changed": changed}, sinks=0)
    assert not done.errors
    same = [torch.equal(*pair) for pair in zip(done.rankings_HL["plain"], done.rankings_HL["changed"])]
    assert same == [True, True, False]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_part_of_a_cell_s_identity(name, tmp_path):
    context = MethodContext(tiny_backbone().geometry)
    hashes = set()
    for seed in (0, 0, 1):
        folder = save_weights(name, context.geometry, tmp_path / f"{seed}", seed)
        hashes.add(make_method(MethodConfig(name=name, params={"weights": folder}), context).checkpoint)
    assert len(hashes) == 2


@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    context = MethodContext(tiny_backbone().geometry)
    (tmp_path / "empty").mkdir()
    other = save_weights(
        name, tiny_backbone("qwen2" if name == "kvzap" else "gemma3_text").geometry, tmp_path / "other"
    )
    for params, words in (
        ({}, "needs weights that were trained for this model: weights: FOLDER or a hub id such as"),
        ({"weights": str(tmp_path / "nowhere")}, "does not exist"),
        ({"weights": str(tmp_path / "empty")}, "could not be loaded"),
        ({"weights": other}, "this model needs"),
        ({"folder": "x"}, "Allowed: weights"),
    ):
        with pytest.raises(UserError, match=words):
            make_method(MethodConfig(name=name, params=params), context)


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_were_cut_off_are_named(name, tmp_path):
    geometry = tiny_backbone().geometry
    folder = Path(save_weights(name, geometry, tmp_path / "whole"))
    (weights,) = folder.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(UserError, match=f"weights {folder} could not be loaded"):
        make_method(MethodConfig(name=name, params={"weights": str(folder)}), MethodContext(geometry))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"plain text", b"\x80\x02K\x01."])
def test_gates_that_are_no_gates_are_named(content, tmp_path):
    (tmp_path / "gates.pt").write_bytes(content)
    config = MethodConfig(name="fastkvzip", params={"weights": str(tmp_path / "gates.pt")})
    with pytest.raises(UserError, match=r"weights .*gates\.pt could not be loaded"):
        make_method(config, MethodContext(tiny_backbone().geometry))
