"""Variants of the indexer, one change at a time: trained side by side, then compared on the same samples. Without Ray.

    python tests/bench/indexer_study.py sweeps/indexer/smollm2.yaml --root FOLDER --variants default kl --seeds 0 1 2
    python tests/bench/indexer_study.py sweeps/indexer/smollm2.yaml --root FOLDER --variants default --floors 0 0.2

Each training and each part of the evaluation is a process of its own (distill_without_ray.py, grid_without_ray.py) on
one of the GPUs, several at once. What is finished is not done again. Modules are found as FOLDER/modules/VARIANT-SEED,
rows in FOLDER/runs/results, where `indexmem report` reads them; their table (score_tables.py) is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from score_tables import measure, parse, show

from indexmem.config.load import load

BENCH = Path(__file__).parent.absolute()
PROSE = "distill.texts=[essays-train,king-james]"
PAIR = ("indexer.pair_term=true", "indexer.heads=4", "indexer.dim=16")
PAIR_ALONE = (*PAIR, "indexer.token_term=0")
OLD = ("target.source=logprobs", "target.loss=kl", *PAIR_ALONE)

# What is changed of the spec; `default` changes nothing.
VARIANTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "default": (),
        "memory": ("distill.modules=[indexer,memory]", "distill.joint_from=120"),
        "locret": ("distill.modules=[locret]", "distill.locret_hidden=128"),
        "locret-causal": ("distill.modules=[locret]", "distill.locret_hidden=128", *OLD),
        "kl": ("target.loss=kl",),
        "mse": ("target.loss=mse",),
        "causal": ("target.source=logprobs",),
        "pair": PAIR_ALONE,
        "both": PAIR,
        "wide": ("indexer.token_term=512",),
        "key": ("indexer.reads=key",),
        "key-pre": ("indexer.reads=key_pre",),
        "key-value": ("indexer.reads=key_value",),
        "newline": ('target.request="\\n\\n"',),
        "request": ('target.request="\\n\\nRepeat the previous context exactly."',),
        "chunk": ("target.chunk=512",),
        "prose": (PROSE,),
        "paper-scorer": ("target.loss=kl", *PAIR_ALONE),
        "before": (*OLD, PROSE),
        "before-corpus": OLD,
        "untrained": ("distill.schedule={warmup: 0, stable: 1, decay: 0, peak_lr: 1.0e-12, final_lr: 1.0e-12}",),
        "own-tasks": ("distill.texts=[build/testbed/documents.jsonl]",),
        "packed": ("distill.packing=true",),
        "long": ("distill.schedule={warmup: 30, stable: 500, decay: 470, peak_lr: 3.0e-3, final_lr: 3.0e-5}",),
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of all variants")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--variants", nargs="*", default=[], help=", ".join(VARIANTS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--extra", nargs="*", default=[], metavar="NAME", help="more FOLDER/modules/NAME to evaluate")
    parser.add_argument("--shares", nargs="*", default=[], help="head, layer, model; default: as trained")
    parser.add_argument("--floors", nargs="*", type=float, default=[], help="of share model; default: the spec's")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=8, help="processes on each GPU")
    parser.add_argument("--minutes", type=float, default=9.0, help="of evaluation")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("--no-eval", action="store_true")
    arguments = parser.parse_args()
    modules = [f"{name}-{seed}" for name in arguments.variants for seed in arguments.seeds]
    if not arguments.no_train:
        train(arguments, modules)
    if not arguments.no_eval:
        evaluate(arguments, [*modules, *arguments.extra])
        print(show(measure(parse(["--rows", str(arguments.root / "runs" / "results")]))))


def train(arguments: argparse.Namespace, modules: Sequence[str]) -> None:
    """All that is not trained yet, in parallel."""
    commands = {}
    for name in modules:
        variant, _, seed = name.rpartition("-")
        changes = [*arguments.overrides, *VARIANTS[variant], f"distill.seed={seed}"]
        if not (arguments.root / "modules" / name).exists():
            commands[name] = [str(BENCH / "distill_without_ray.py"), arguments.spec, *changes]
    for name, output in in_parallel(commands, arguments).items():
        folder = Path(output.strip().splitlines()[-1])
        link = arguments.root / "modules" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(folder)


def evaluate(arguments: argparse.Namespace, modules: Sequence[str]) -> None:
    """The methods and the trained modules on the spec's samples, each part of these in a process."""
    spec = load(arguments.spec, arguments.overrides)
    listed = [json.dumps(method.model_dump()) for method in spec.grid.methods]
    listed += [text for name in modules for text in methods_of(name, arguments)]
    changes = [f"grid.methods=[{','.join(listed)}]"]
    parts = arguments.gpus * arguments.at_once
    commands = {
        f"part-{part}": [
            *(str(BENCH / "grid_without_ray.py"), arguments.spec, *arguments.overrides, *changes),
            *("--part", f"{part}/{parts}", "--minutes", str(arguments.minutes)),
        ]
        for part in range(1, parts + 1)
    }
    in_parallel(commands, arguments)


def methods_of(name: str, arguments: argparse.Namespace) -> list[str]:
    """What is compared of a variant, as YAML."""
    params = [f"checkpoint: modules/{name}"]
    if name.startswith("locret"):
        return [f"{{name: locret, params: {{{params[0]}}}}}"]
    kinds = ["indexer", "indexmem"] if name.startswith("memory") else ["indexer"]
    shared = [f", share: {share}" for share in arguments.shares]
    shared += [f", share: model, floor: {floor}" for floor in arguments.floors]
    return [f"{{name: {kind}, params: {{{params[0]}{more}}}}}" for kind in kinds for more in shared or [""]]


def in_parallel(commands: Mapping[str, Sequence[str]], arguments: argparse.Namespace) -> dict[str, str]:
    """Output by name of the commands that succeeded; the end of what went wrong is printed."""
    slots = [gpu for _ in range(arguments.at_once) for gpu in range(arguments.gpus)]
    waiting, running, done = list(commands.items()), {}, {}
    root = arguments.root.absolute()
    began = time.monotonic()
    logs = root / "logs" / str(os.getpid())  # several studies may use one root
    logs.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and slots:
            name, command = waiting.pop(0)
            gpu = slots.pop(0)
            env = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu), "OMP_NUM_THREADS": "1"}
            script, spec, *rest = command
            command = [sys.executable, script, str(Path(spec).absolute()), f"run.root={root / 'runs'}", *rest]
            with (logs / name).open("w") as log, (logs / f"{name}.errors").open("w") as errors:
                running[name] = gpu, subprocess.Popen(command, cwd=root, env=env, stdout=log, stderr=errors)
        for name, (gpu, process) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                slots.append(gpu)
                if process.returncode == 0:
                    done[name] = (logs / name).read_text()
                    print(
                        f"{time.monotonic() - began:5.0f} s  {name}: {done[name].strip().splitlines()[-1]}", flush=True
                    )
                else:
                    print(f"{name} failed: {(logs / f'{name}.errors').read_text()[-1500:]}", flush=True)
        time.sleep(0.2)
    return done


if __name__ == "__main__":
    main()
