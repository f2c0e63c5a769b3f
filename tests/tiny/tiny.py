"""Two linear layers, 334 parameters: the model of workflow tests that are not about a real one."""

from torch import nn
from torch.nn import functional as F

TITLE = "Tiny"
DATA = "vectors"
loss = F.cross_entropy


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 10))
