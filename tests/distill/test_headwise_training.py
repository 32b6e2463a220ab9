"""A memory trained for a head-wise base learns from what that base's heads really evict."""

import pytest
import torch
from tiny_models import random_ids, tiny_backbone

from indexmem.config.load import validate
from indexmem.config.schema import MethodConfig
from indexmem.distill.trainees.registry import make_trainees
from indexmem.errors import UserError
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.attention import tapping

RATIO, LENGTH, QUERIES = 0.3, 160, 40


def trainee(base):
    spec = {"memory": {"bases": [base]}, "distill": {"modules": ["memory"], "query_tokens": QUERIES}}
    return make_trainees(validate(spec, "test"), tiny_backbone().geometry)[0]


@pytest.mark.parametrize("base", ["snapkv", "adakv", "critical_adakv", "pyramidkv", "compactor"])
def test_a_training_window_loses_what_the_base_evicts(base):
    trained = trainee(base)
    method = make_method(MethodConfig(name=base), MethodContext(tiny_backbone().geometry))
    taps = []
    ids = torch.tensor([random_ids(LENGTH, seed=seed) for seed in (0, 1)])
    with tapping(tiny_backbone().model, taps.append) as kwargs, torch.no_grad():
        tiny_backbone().model(ids, use_cache=False, **kwargs)
    context = LENGTH - QUERIES
    uneven = set()
    for tap in taps:
        scene = trained.scene(tap, context, QUERIES, RATIO)
        scores = method.score(tap.prefix(context))
        for leaves_HC, scores_HC in zip(scene.leaves_BHC, scores):
            selection = method.selection.of_layer(tap.layer, 3)
            (kept,) = selection.choose([selection.rank(scores_HC, 4)], context, context * (1 - RATIO))
            for head, positions_K in enumerate(kept.positions_HK):
                stays = (~leaves_HC[head]).nonzero().squeeze(1)
                assert torch.equal(stays, positions_K.unique())
            uneven.add(len((~leaves_HC).sum(1).unique()) > 1)
    assert (True in uneven) == (base in ("adakv", "critical_adakv"))


def test_a_base_with_a_pass_of_its_own_is_refused():
    with pytest.raises(UserError, match=r"memory.bases: 'kvzip' .* leave it out"):
        trainee("kvzip")


def test_a_base_that_ranks_by_all_layers_together_is_refused():
    with pytest.raises(UserError, match=r"memory.bases: 'running_mean' ranks by the scores of all layers"):
        trainee("running_mean")
