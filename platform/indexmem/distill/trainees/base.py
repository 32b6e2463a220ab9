"""What is trained: named modules with a local loss in each layer."""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from indexmem.models.attention import LayerTap


@dataclass(frozen=True)
class StepContext:
    """What a loss may depend on besides the batch; the same on every rank."""

    step: int
    seed: int

    def uniform(self, low: float, high: float, what: str = "") -> float:
        """A draw for this step; draws of another name are independent."""
        return random.Random(f"{self.seed}/{self.step}{what}").uniform(low, high)


class Trainee(nn.Module):
    """One module of the checkpoint, and how a layer's tap teaches it."""

    name: str  # in the checkpoint

    @property
    @abstractmethod
    def trained(self) -> nn.ModuleList:
        """What the checkpoint holds; has `shape` and `geometry`."""

    @abstractmethod
    def layer_loss(self, tap: LayerTap, lengths_B: Tensor, step: StepContext) -> Tensor:
        """Scalar loss of one layer, with gradients to this layer's weights only. Called in layer order."""

    def goes_on(self, layer: int) -> bool:
        """Whether a later layer's loss builds on what this layer's loss was computed from."""
        return False

    def measured(self) -> dict[str, float]:
        """What else the step showed, by name; of this rank's share of it. Asked once after each step."""
        return {}

    def starts_at(self) -> int:
        """First step that trains this module."""
        return 0

    def idle_loss(self) -> Tensor:
        """A zero that touches every weight: DDP then finds none unused before the module starts."""
        return sum((p.sum() * 0.0 for p in self.parameters()), start=next(self.parameters()).new_zeros(()))
