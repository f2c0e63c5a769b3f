"""VGG16 for 32x32 images: 13 convolutions with BatchNorm, one linear layer: 14,728,266 parameters."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "VGG16"
DATA = "cifar10"
loss = F.cross_entropy

WIDTHS: list[int | str] = [
    64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool", 512, 512, 512, "pool",
]  # fmt: skip


class VGG16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width in WIDTHS:
            if isinstance(width, str):
                layers.append(nn.MaxPool2d(2))
            else:
                conv = nn.Conv2d(inputs, width, 3, padding=1)
                layers += [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


def build() -> VGG16:
    model = VGG16()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
