"""Where a pre-training on Ray lives on disk, and under which name: a hash of all that shapes the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from indexmem.config.spec import content_hash, run_root
from indexmem.texts.documents import documents_hash, documents_of
from indexmem_testbed.config import PretrainingSpec
from indexmem_testbed.start import start_hash
from indexmem_testbed.tokenizer import load_tokenizer

# Settings that change how fast or how safely training runs, not what it computes.
OPERATIONAL = {
    *("workers", "use_gpu", "loaders", "compile", "checkpoint_every", "keep_checkpoints", "max_failures"),
    *("evaluate_every", "evaluate_samples", "evaluate_lengths", "heldout"),
}
STREAM_VERSION = 1  # of pretrain/stream.py and what it calls; raise when the same settings give other batches


@dataclass(frozen=True)
class PretrainRun:
    id: str
    folder: Path

    @classmethod
    def of(cls, experiment: PretrainingSpec) -> PretrainRun:
        """Raises UserError when a text, or the model that it starts from, cannot be found."""
        identity = {
            "pretrain": experiment.pretrain.model_dump(mode="json", exclude={*OPERATIONAL, "start_from"}),
            "stream": STREAM_VERSION,
            "texts": [documents_hash(documents_of(name)) for name in experiment.pretrain.texts],
            "tokenizer": content_hash(load_tokenizer().get_vocab()),
        }
        if experiment.pretrain.start_from is not None:
            identity["start"] = start_hash(experiment.pretrain.start_from)
        name = content_hash(identity)
        return cls(name, run_root(experiment) / "pretrain" / name)

    @property
    def history(self) -> Path:
        return self.folder / "history"

    @property
    def final(self) -> Path:
        """The model folder; exists only when training has finished."""
        return self.folder / "final"
