"""What can be wrong with a training spec, found before anything starts."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.distill.data import WindowStream
from indexmem.distill.loop import begin_with
from indexmem.distill.runs import DistillRun
from indexmem.distill.trainees.registry import make_trainees
from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_geometry
from indexmem.models.assets import modules_folder
from indexmem.models.backbone import check_packing, inspect, load_tokenizer
from indexmem.models.geometry import Geometry
from indexmem.models.prompt import encode
from indexmem.models.rereading import LEAD_IN_TOKENS, most_read_again


def check_distill(experiment: Experiment) -> DistillRun:
    """All that can be wrong with a training spec, found before Ray starts: sizes first, then what takes the model's
    tokenizer and the texts, which in a dry run may be NotAtHand.
    """
    geometry = inspect(experiment.model)
    config = experiment.distill
    if config.length > geometry.max_positions:
        raise UserError(
            f"distill.length={config.length} is more than the model's context of {geometry.max_positions} tokens. "
            f"Use distill.length={geometry.max_positions} or less."
        )
    if config.length <= experiment.target.sinks + 1:
        raise UserError(
            f"distill.length={config.length} leaves no tokens after target.sinks={experiment.target.sinks}."
        )
    if not config.texts:
        raise UserError("distill.texts is empty. Example: distill.texts='[king-james]'")
    tokenizer = load_tokenizer(experiment.model)
    again = 0
    if experiment.target.source == "reconstruction":
        again = _check_second_reading(experiment, geometry, len(encode(tokenizer, experiment.target.request)))
    if config.packing or again:
        check_packing(experiment.model, config.length, again)
    WindowStream.of(config, tokenizer).check()
    if config.start_from is not None:
        folder = modules_folder(config.start_from)
        check_geometry(folder, geometry)
        begin_with(folder, make_trainees(experiment, geometry))
    return DistillRun.of(experiment)


def _check_second_reading(experiment: Experiment, geometry: Geometry, request: int) -> int:
    """Positions that it takes at most. Raises UserError where the model has fewer."""
    length, chunk, most = experiment.distill.length, experiment.target.chunk, geometry.max_positions
    again = most_read_again(length, request, chunk)
    if length + again > most:
        smaller_chunk, smaller_length = (
            most - length - request - LEAD_IN_TOKENS,
            most - chunk - request - LEAD_IN_TOKENS,
        )
        if smaller_length <= chunk:  # then a text is a single chunk
            smaller_length = max(1, min(chunk, (most - request) // 2))
        or_chunk = f", or target.chunk={smaller_chunk} or less" if smaller_chunk > 0 else ""
        raise UserError(
            f"target.source=reconstruction reads texts twice: distill.length={length} and target.chunk={chunk} reach "
            f"{length + again} positions, and the model's context has {most} tokens. "
            f"Use distill.length={smaller_length} or less{or_chunk}."
        )
    return again
