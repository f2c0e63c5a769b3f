"""VGG16 for 84x84 images with 100 classes, miniImageNet's: 14,928,036 parameters.

The head has four times the inputs of VGG16 for 32x32 images: 2 x 2 positions are left of 84 x 84 pixels. As in
vgg16_imagenet, pooling gives this number of positions for images of any size.
"""

from torch import nn
from torch.nn import functional as F

from . import vgg16

TITLE = "VGG16, 84x84 images"
DATA = "images84"
loss = F.cross_entropy


def build() -> nn.Module:
    model = vgg16.build()
    model.features.append(nn.AdaptiveAvgPool2d(2))
    model.classifier = nn.Linear(4 * 512, 100)
    return model
