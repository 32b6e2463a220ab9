"""The latent memories against their fp64 references, and the promises that hold for each of them."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_reference import linear_readout, positive_joint_readout, slot_readout, slot_writes
from tiny_models import tiny_config
from transformers import LlamaConfig

from indexmem.config.modules import MemoryConfig
from indexmem.eviction.memory.attention import merge, partial_attention
from indexmem.eviction.memory.base import Evicted, MemoryShape, MemoryState
from indexmem.eviction.memory.clustering import cluster_means, k_means, nearest_centre
from indexmem.eviction.memory.stack import MEMORY_KINDS, MemoryStack
from indexmem.models.geometry import Geometry

GEOMETRY = Geometry.of(tiny_config("llama"))  # 4 query heads, 2 KV heads of 16, hidden size 48
HEADS, KV, DIM, HIDDEN, LENGTH = 4, 2, 16, 48, 12


def build(**settings_):
    torch.manual_seed(1)
    shape = MemoryShape.of(MemoryConfig(**settings_), GEOMETRY)
    memory = MEMORY_KINDS[shape.features](shape, GEOMETRY)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return memory


def scene(rows=2, seed=0, share=0.6):
    """Keys, values, per-head evictions, queries and an attention output over what stays, for a batch of rows."""
    torch.manual_seed(seed)
    key, value = torch.randn(rows, KV, LENGTH, DIM), torch.randn(rows, KV, LENGTH, DIM)
    leaves = torch.rand(rows, KV, LENGTH) < share
    leaves[:, :, 0], leaves[:, :, 1] = False, True
    query = torch.randn(rows, HEADS, 3, DIM)
    kept = partial_attention(query, key, value, DIM**-0.5, ~leaves[:, :, None, None, :])
    lost = partial_attention(query, key, value, DIM**-0.5, leaves[:, :, None, None, :])
    return key, value, leaves, query, kept, lost


LINEAR = list(itertools.product(["head", "kv_flat", "model"], ["attn", "model"], ["add", "mix"]))


@pytest.mark.parametrize(("input_", "value_space", "fusion"), LINEAR)
def test_linear_memory_equals_the_papers_equations(input_, value_space, fusion):
    memory = build(
        features="linear", input=input_, value=value_space, fusion=fusion, dim=7, decay=0.7, write_strength=1.3
    )
    key, value, leaves, query, (output, lse), _ = scene()
    key2, value2, leaves2, *_ = scene(seed=5)
    weight = torch.randn(HIDDEN, HEADS * DIM)
    state = memory.write(None, Evicted(key, value, leaves, weight))
    state = memory.write(state, Evicted(key2, value2, leaves2, weight))
    readout = memory.read(state, query, output, lse)
    for row, n in itertools.product(range(2), range(3)):
        writes = [(key[row], value[row], leaves[row]), (key2[row], value2[row], leaves2[row])]
        expected = linear_readout(memory, writes, query[row, :, n], output[row, :, n], weight)
        got = readout.output_BQnd[row, :, n].double()
        if value_space == "model":
            got = weight.double() @ got.flatten() + readout.residual_BnD[row, n].double()
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)


def test_positive_memory_equals_its_equations():
    memory = build(features="positive", dim=8, decay=0.7, write_strength=1.3)
    key, value, leaves, query, (output, lse), _ = scene()
    key2, value2, leaves2, *_ = scene(seed=5)
    state = memory.write(memory.write(None, Evicted(key, value, leaves)), Evicted(key2, value2, leaves2))
    got = memory.read(state, query, output, lse).output_BQnd
    for row, n in itertools.product(range(2), range(3)):
        writes = [(key[row], value[row], leaves[row]), (key2[row], value2[row], leaves2[row])]
        expected = positive_joint_readout(memory, writes, query[row, :, n], output[row, :, n], lse[row, :, n])
        torch.testing.assert_close(got[row, :, n].double(), expected, atol=1e-5, rtol=1e-4)


def test_slot_memory_equals_its_equations():
    memory = build(features="slots", dim=4)
    key, value, leaves, query, (output, lse), _ = scene()
    state = memory.write(None, Evicted(key, value, leaves))
    got = memory.read(state, query, output, lse).output_BQnd
    for row, n in itertools.product(range(2), range(3)):
        slots = {name: tensor[row] for name, tensor in state.tensors.items()}
        expected = slot_readout(memory, slots, query[row, :, n], output[row, :, n], lse[row, :, n])
        torch.testing.assert_close(got[row, :, n].double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(state.tensors["mass"].sum(-1), leaves.sum(-1).float())


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dim", [3, 4, 30])
def test_slots_after_several_writes_equal_their_equations(count, dim):
    """Old mass decays, and what is merged keeps its dispersion. Of 30 slots some stay empty; rounding decides which."""
    memory = build(features="slots", dim=dim, decay=0.7, write_strength=1.3)
    memory.observe(scene(seed=9)[3])
    scenes = [scene(seed=seed) for seed in (0, 5, 6)[:count]]
    state = None
    for key, value, leaves, *_ in scenes:
        state = memory.write(state, Evicted(key, value, leaves))
    query, (output, lse) = scenes[0][3:5]
    got = memory.read(state, query, output, lse).output_BQnd
    for row in range(2):
        slots = slot_writes(memory, [(key[row], value[row], leaves[row]) for key, value, leaves, *_ in scenes])
        expected = slot_readout(memory, slots, query[row, :, 0], output[row, :, 0], lse[row, :, 0])
        torch.testing.assert_close(got[row, :, 0].double(), expected, atol=1e-5, rtol=1e-4)
        for name, tensor in slots.items() if dim < 30 else ():
            torch.testing.assert_close(state.tensors[name][row].double(), tensor.double(), atol=1e-5, rtol=1e-4)


def test_enough_slots_lose_nothing():
    """One slot for each evicted token: the fused output is full attention."""
    shape = MemoryShape.of(MemoryConfig(dim=LENGTH), GEOMETRY)
    memory = MEMORY_KINDS["slots"](shape, GEOMETRY)
    key, value, leaves, query, kept, lost = scene()
    full, _ = merge(kept, lost)
    got = memory.read(memory.write(None, Evicted(key, value, leaves)), query, *kept).output_BQnd
    torch.testing.assert_close(got, full, atol=1e-5, rtol=1e-4)
    assert (full - kept[0]).abs().max() > 0.1


ALL = [
    {"features": "slots", "dim": 4},
    {"features": "positive", "dim": 8},
    {"features": "positive", "dim": 8, "fusion": "mix"},
    *({"features": "linear", "dim": 7, "input": i, "value": v, "fusion": f} for i, v, f in LINEAR),
]


@pytest.mark.parametrize("config", ALL, ids=str)
def test_an_empty_memory_changes_no_bit(config):
    memory = build(**config)
    key, value, leaves, query, (output, lse), _ = scene()
    weight = torch.randn(HIDDEN, HEADS * DIM)
    state = memory.write(None, Evicted(key, value, torch.zeros_like(leaves), weight))
    if memory.shape.fusion == "mix":  # g o is taken away whatever the memory holds: only g = 0 is neutral
        with torch.no_grad():
            memory.gate.weight.zero_(), memory.gate.bias.fill_(-torch.inf)
    readout = memory.read(state, query, output, lse)
    assert torch.equal(readout.output_BQnd, output)
    assert readout.residual_BnD is None or (readout.residual_BnD == 0).all()


@pytest.mark.parametrize("config", [c for c in ALL if c.get("fusion") in ("add", "mix")], ids=str)
def test_a_closed_gate_changes_no_bit(config):
    memory = build(**config)
    key, value, leaves, query, (output, lse), _ = scene()
    weight = torch.randn(HIDDEN, HEADS * DIM)
    with torch.no_grad():
        memory.gate.weight.zero_(), memory.gate.bias.fill_(-torch.inf)
    readout = memory.read(memory.write(None, Evicted(key, value, leaves, weight)), query, output, lse)
    assert torch.equal(readout.output_BQnd, output)


@pytest.mark.parametrize("config", ALL, ids=str)
def test_rows_do_not_mix_and_kept_tokens_play_no_part(config):
    memory = build(**config)
    key, value, leaves, query, (output, lse), _ = scene(rows=3)
    weight = torch.randn(HIDDEN, HEADS * DIM)
    together = memory.write(None, Evicted(key, value, leaves, weight))
    noise = torch.where(leaves[..., None], key, torch.randn_like(key))
    for row in range(3):
        one = slice(row, row + 1)
        alone = memory.write(None, Evicted(noise[one], value[one], leaves[one], weight))
        for name, tensor in alone.tensors.items():
            torch.testing.assert_close(tensor[0], together.tensors[name][row], atol=1e-5, rtol=1e-4)
    stacked = MemoryState.stack([together.select(torch.tensor([2])), together.select(torch.tensor([0, 1]))])
    got = memory.read(stacked, query[[2, 0, 1]], output[[2, 0, 1]], lse[[2, 0, 1]]).output_BQnd
    expected = memory.read(together, query, output, lse).output_BQnd[[2, 0, 1]]
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_write_strength_cancels_in_the_papers_readout_and_decay_does_not():
    key, value, leaves, query, (output, lse), _ = scene()
    later = scene(seed=5)[:3]

    def read(**changes):
        memory = build(features="linear", fusion="add", gate_bias=0.0, dim=7, **changes)
        state = memory.write(memory.write(None, Evicted(key, value, leaves)), Evicted(*later))
        return memory.read(state, query, output, lse).output_BQnd

    torch.testing.assert_close(read(write_strength=1.0), read(write_strength=8.0), atol=1e-4, rtol=1e-4)
    assert (read(decay=1.0) - read(decay=0.3)).abs().max() > 1e-3


@given(
    points=st.integers(2, 20).flatmap(
        lambda n: st.lists(st.tuples(st.integers(-4, 4), st.integers(-4, 4), st.integers(0, 2)), min_size=n, max_size=n)
    ),
    clusters=st.integers(1, 6),
)
@settings(deadline=None)
def test_clustering(points, clusters):
    point = torch.tensor([[[p[:2] for p in points]]]).float()
    weight = torch.tensor([[[p[2] for p in points]]]).float()
    slot = k_means(point, weight, clusters)
    assert torch.equal(slot, k_means(point, weight, clusters)), "deterministic"
    total, (mean, value) = cluster_means(slot, weight, (point, point * 2), clusters)
    assert total.sum() == weight.sum()
    torch.testing.assert_close((mean * total[..., None]).sum(2), (point * weight[..., None]).sum(2))
    torch.testing.assert_close(value, mean * 2)
    distinct = {p[:2] for p in points if p[2] > 0}
    if len(distinct) <= clusters:
        assert all(
            len({p[:2] for p, s in zip(points, slot[0, 0].tolist()) if s == k and p[2] > 0}) <= 1
            for k in range(clusters)
        )
    assert (nearest_centre(point, mean) < clusters).all()


def test_parameter_counts_and_state_sizes_of_the_paper_preset():
    """Llama-3.1-8B: kv_flat 1024 -> 512 is 524,288 a layer; the other reading, `model`, 2,097,152."""
    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256
    )
    geometry = Geometry.of(config)
    sizes = {}
    for reading in ("kv_flat", "model"):
        preset = MemoryConfig(features="linear", fusion="add", input=reading, rotary="pre")
        with torch.device("meta"):
            memories = MemoryStack(MemoryShape.of(preset, geometry), geometry)
        sizes[reading] = sum(p.numel() for name, p in memories[0].named_parameters() if name.startswith("phi"))
        assert memories.shape.dim == 512
    assert sizes == {"kv_flat": 524_288, "model": 2_097_152}
    slots = MemoryShape.of(MemoryConfig(), geometry)
    assert slots.dim * (2 * 128 + 2) <= 64 * 2 * 128, "default slots cost no more than 64 tokens of K and V"


@pytest.mark.parametrize("features", ["slots", "positive"])
def test_a_head_that_lost_no_token_answers_as_without_memory_and_teaches_nothing(features):
    memory = build(features=features, fusion="joint")
    torch.manual_seed(0)
    key, value = torch.randn(2, KV, 30, DIM), torch.randn(2, KV, 30, DIM)
    leaves = torch.rand(2, KV, 30) < 0.5
    leaves[0, 1] = leaves[1] = False
    query, output, lse = torch.randn(2, HEADS, 5, DIM), torch.randn(2, HEADS, 5, DIM), torch.randn(2, HEADS, 5)
    group = HEADS // KV
    fused = memory.read(memory.write(None, Evicted(key, value, leaves)), query, output, lse).output_BQnd
    assert torch.equal(fused[0, group : 2 * group], output[0, group : 2 * group]) and torch.equal(fused[1], output[1])
    assert not torch.equal(fused[0, :group], output[0, :group])
    fused.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in memory.named_parameters() if parameter.grad is not None}
    assert gradients and all(gradient.isfinite().all() for gradient in gradients.values())
