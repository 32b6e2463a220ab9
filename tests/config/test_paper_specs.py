"""sweeps/paper says what the paper says: every number that it prints, beside the words in which it does.

INDEXMEM_PAPER=FILE.tex makes the words be looked for in the paper's source, too.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from indexmem.config.load import load
from indexmem.config.schema import Experiment
from indexmem.config.table import load_table
from indexmem.eviction.indexer import IndexerShape
from indexmem.models.geometry import LLAMA_31_8B

PAPER = Path(__file__).parents[2] / "sweeps" / "paper"
SPECS = sorted(path.stem for path in PAPER.glob("*.yaml") if not path.stem.startswith("table"))
PRINTED = [name for name in SPECS if not name.endswith("-ours")]
TRAINED = [name for name in PRINTED if name != "running-mean"]
LLAMA, QWEN, MISTRAL = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B", "mistralai/Mistral-7B-Instruct-v0.3"


@dataclass(frozen=True)
class Claim:
    words: str  # of the paper's source, without which the expectation is ours alone
    of: list[str]  # specs
    what: Callable[[Experiment], Any]
    expected: Any


def labels(spec: Experiment) -> set[str]:
    return {method.label for method in spec.grid.methods}


def params(spec: Experiment) -> dict[str, Any]:
    return dict(spec.grid.benchmarks[0].params)


CLAIMS = [
    Claim("keep the first four tokens in the cache for all methods", PRINTED, lambda s: s.eviction.sinks, 4),
    Claim(r"H_{\text{index}} = H/4", ["ruler"], lambda s: IndexerShape.of(s.indexer, LLAMA_31_8B).heads, 32 // 4),
    Claim(
        r"d_{\text{index}} = d_{\text{head}}/8",
        ["ruler"],
        lambda s: IndexerShape.of(s.indexer, LLAMA_31_8B).dim,
        128 // 8,
    ),
    Claim(r"d_\text{mem} = d/8", TRAINED, lambda s: s.memory.dim, None),  # the default: d/8
    Claim(r"A=\mathrm{Indexer}(X,Q)\in\mathbb{R}^{L\times L}", TRAINED, lambda s: s.indexer.scope, "layer"),
    Claim(
        r"\mathrm{imp}_{t}=\max_{s\in\mathcal{Q}} A_{s,t}",
        TRAINED,
        lambda s: (s.indexer.pair_term, s.indexer.token_term),
        (True, 0),
    ),
    Claim(
        r"teacher attention logits $T = QK^\top", TRAINED, lambda s: (s.target.source, s.target.loss), ("logits", "kl")
    ),
    Claim(r"exclude \textbf{sink tokens}", TRAINED, lambda s: s.target.sinks > 0, True),
    Claim(
        r"o \;=\; o_{\mathrm{attn}} \;+\; g(q) \cdot m(q)",
        TRAINED,
        lambda s: (s.memory.features, s.memory.fusion),
        ("linear", "add"),
    ),
    Claim(
        "jointly train the indexer and the memory module",
        TRAINED,
        lambda s: {"indexer", "memory"} <= set(s.distill.modules),
        True,
    ),
    Claim("100 warmup steps", TRAINED, lambda s: s.distill.schedule.warmup, 100),
    Claim(r"to $1 \times 10^{-3}$", TRAINED, lambda s: s.distill.schedule.peak_lr, 1e-3),
    Claim("which use a constant learning-rate schedule", ["ruler"], lambda s: s.distill.schedule.kind, "constant"),
    Claim("warmup-stable-decay (WSD)", sorted({*TRAINED} - {"ruler"}), lambda s: s.distill.schedule.kind, "wsd"),
    Claim(
        r"2000 stable steps and 2000 decay steps to $7.5 \times 10^{-6}$",
        sorted({*TRAINED} - {"ruler"}),
        lambda s: (s.distill.schedule.stable, s.distill.schedule.decay, s.distill.schedule.final_lr),
        (2000, 2000, 7.5e-6),
    ),
    Claim(
        "Ruler results under different compression ratios",
        ["ruler"],
        lambda s: s.grid.ratios,
        (0.1, 0.25, 0.5, 0.75, 0.9),
    ),
    Claim(
        "ExpectedAttention (attention-statistics-based importance), KeyDiff",
        ["ruler", "niah"],
        lambda s: labels(s) >= {"expected_attention", "keydiff", "tova", "snapkv", "pyramidkv", "indexmem"},
        True,
    ),
    Claim(
        "heatmaps of Llama-3.1-8B-Instruct under KV eviction at 50\\%",
        ["niah"],
        lambda s: (s.model.id, s.grid.ratios),
        (LLAMA, (0.5,)),
    ),
    Claim("context lengths (1K--12.5K)", ["niah"], lambda s: s.grid.length, 12_500),
    Claim("Scores on LongBench for Llama-3.1-8B-Instruct", ["longbench"], lambda s: s.model.id, LLAMA),
    Claim(
        r"Method & 10\% & 25\% & 50\% & 75\% & 90\%",
        ["longbench"],
        lambda s: s.grid.ratios,
        (0.1, 0.25, 0.5, 0.75, 0.9),
    ),
    Claim(
        r"periodic compression every $\tau=128$",
        ["longbench", "decode", "math500", "efficiency"],
        lambda s: (s.eviction.decode_budget, s.eviction.decode_every),
        ("budget", 128),
    ),
    Claim("forming SnapKV+Memory", ["longbench"], lambda s: labels(s) >= {"indexer", "snapkv", "snapkv+memory"}, True),
    Claim(
        r"seven representative LongBench tasks at $75\%$",
        ["longbench-systems"],
        lambda s: (s.grid.ratios, len(params(s)["sets"])),
        ((0.75,), 7),
    ),
    Claim(
        "hotpotqa & triviaqa & passage\\_retrieval\\_en & multifieldqa\\_en & multi\\_news & multifieldqa\\_zh",
        ["longbench-systems"],
        lambda s: params(s)["sets"][1:],
        ["hotpotqa", "triviaqa", "passage_retrieval_en", "multifieldqa_en", "multi_news", "multifieldqa_zh"],
    ),
    Claim(
        "representation-level baseline (xKV) and a learnable retention baseline (Locret",
        ["longbench-systems"],
        lambda s: labels(s) >= {"indexmem", "xkv", "locret"},
        True,
    ),
    Claim("Decoding time KV cache compression on Qwen3-8B", ["decode", "math500"], lambda s: s.model.id, QWEN),
    Claim(
        r"B_{\max}\in\{512,1024,1536,2048\}",
        ["decode", "math500"],
        lambda s: [b.amount for b in s.grid.budgets],
        [512, 1024, 1536, 2048],
    ),
    Claim("AIME25 and Math500", ["decode"], lambda s: s.grid.benchmarks[0].name, "aime25"),
    Claim("AIME25 and Math500", ["math500"], lambda s: s.grid.benchmarks[0].name, "math500"),
    Claim("Efficiency analysis of Llama-3.1-8B-Instruct", ["efficiency"], lambda s: s.model.id, LLAMA),
    Claim(
        "32K prefill and 1K decoding",
        ["efficiency"],
        lambda s: (s.grid.length - s.grid.max_new_tokens, s.grid.max_new_tokens, params(s)["to_the_limit"]),
        (32 * 1024, 1024, True),
    ),
    Claim(
        "reuse indexer scores across every four consecutive layers", ["indexcache"], lambda s: s.indexer.share_every, 4
    ),
    Claim(
        "RULER results on Mistral-7B with IndexCache-style score reuse", ["indexcache"], lambda s: s.model.id, MISTRAL
    ),
    Claim(r"Method & 4K-25\% & 4K-50\% & 4K-90\%", ["indexcache"], lambda s: s.grid.ratios, (0.25, 0.5, 0.9)),
    Claim(
        "compares favorably against AdaKV",
        ["indexcache"],
        lambda s: labels(s) >= {"indexmem", "adakv", "snapkv", "tova"},
        True,
    ),
    Claim(r"\mathrm{CR}\in\{0.25,0.50,0.75,0.90\}", ["running-mean"], lambda s: s.grid.ratios, (0.25, 0.5, 0.75, 0.9)),
    Claim(
        r"RM + peak gate, keep-high",
        ["running-mean"],
        lambda s: {m.params.get("gate", "none") for m in s.grid.methods if m.name == "running_mean"},
        {"none", "entropy_skip_high", "entropy_skip_low", "peak", "peak_keep_high"},
    ),
    Claim(
        r"EA (\texttt{expected\_attention})",
        ["running-mean"],
        lambda s: {m.params["base"] for m in s.grid.methods if m.name == "running_mean"},
        {"expected_attention"},
    ),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.words[:40])
def test_what_the_paper_says_is_what_is_run(claim):
    for name in claim.of:
        assert claim.what(load(PAPER / f"{name}.yaml")) == claim.expected, name


@pytest.mark.skipif("INDEXMEM_PAPER" not in os.environ, reason="the paper's source is not here")
def test_the_paper_says_so():
    def plain(text: str) -> str:
        return re.sub(r"\s+", " ", text)

    source = plain(Path(os.environ["INDEXMEM_PAPER"]).read_text(encoding="utf-8"))
    assert [claim.words for claim in CLAIMS if plain(claim.words) not in source] == []
    row = re.search(r"Method & (wikiqa .*?) & Avg", source)[1].replace("\\", "").split(" & ")
    sets = params(load(PAPER / "longbench-systems.yaml"))["sets"]
    assert [name.replace("2wikimqa", "wikiqa") for name in sets] == row


@pytest.mark.parametrize("name", SPECS)
def test_every_run_has_a_name_of_its_own(name):
    """By file, model and, where one file is run at several lengths, length."""
    named = load(PAPER / f"{name}.yaml").name
    assert named not in {load(PAPER / f"{other}.yaml").name for other in SPECS if other != name}
    assert load(PAPER / f"{name}.yaml", ["model.id=org/another-1B"]).name != named
    if "ruler" in name or name == "indexcache":
        assert load(PAPER / f"{name}.yaml", ["grid.length=16384"]).name == f"{named.removesuffix('4096')}16384"


@pytest.mark.parametrize("name", ["ruler", "niah", "longbench", "decode"])
def test_ours_differs_from_the_papers_by_what_is_trained_alone(name):
    theirs, ours = load(PAPER / f"{name}.yaml"), load(PAPER / f"{name}-ours.yaml")
    for section in ("model", "grid", "eviction"):
        assert getattr(ours, section) == getattr(theirs, section)
    default = load(PAPER.parent / "presets" / "default.yaml")
    assert (ours.indexer, ours.target) == (default.indexer, default.target)
    assert ours.memory == default.memory.model_copy(update={"bases": theirs.memory.bases})


def test_table_1_has_the_papers_layout():
    spec, _ = load_table(PAPER / "table1.yaml")
    assert [rows.title for rows in spec.rows] == ["Qwen3-8B", "Mistral-7B", "Llama3.1-8B"]
    assert [list(rows.methods) for rows in spec.rows] == [
        ["IndexMem", "KeyDiff", "TOVA", "SnapKV", "PyramidKV"],
        ["IndexMem", "ExpectedAttention", "TOVA", "SnapKV", "PyramidKV"],
        ["IndexMem", "ExpectedAttention", "TOVA", "SnapKV", "PyramidKV"],
    ]
    assert [column.title for column in spec.columns] == ["Ruler 4k", "Ruler 16k"]
    assert list(map(str, spec.budgets)) == ["0%", "10%", "25%", "50%", "75%", "90%"]
    runs = {load(spec.spec, [*r.overrides, *c.overrides]).name for r in spec.rows for c in spec.columns}
    assert len(runs) == 6
