"""ResNet-50 from torchvision, with 100 classes: 23,712,932 parameters."""

import torchvision
from torch import nn
from torch.nn import functional as F

TITLE = "ResNet-50"
DATA = "imagenet100"
loss = F.cross_entropy


def build() -> nn.Module:
    # 100 outputs also for stand-in data with fewer classes, so the gradient keeps its size.
    return torchvision.models.resnet50(weights=None, num_classes=100)
