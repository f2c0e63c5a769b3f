"""ResNet-20 for 32x32 images (He et al., 2016, Section 4.2), option-A shortcuts: 269,722 parameters."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "ResNet-20"
DATA = "cifar10"
loss = F.cross_entropy


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.stride, self.new_channels = stride, outputs - inputs

    def shortcut(self, x: Tensor) -> Tensor:
        """The shortcut of option A, without parameters: subsample, and fill new channels with zeros."""
        if not self.new_channels:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """Three stages of ``blocks`` blocks each: ``6 * blocks + 2`` layers with weights."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv, self.bn = conv3x3(3, 16), nn.BatchNorm2d(16)
        widths = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.blocks = nn.Sequential(
            *(
                Block(inputs if i == 0 else outputs, outputs, stride if i == 0 else 1)
                for inputs, outputs, stride in widths
                for i in range(blocks)
            )
        )
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn(self.conv(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def build(blocks: int = 3) -> nn.Module:
    model = ResNet(blocks)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return model
