"""VGG16 with its ImageNet head, from torchvision: 138,357,544 parameters, of which 123,642,856 are fully connected.

Images are 32 x 32 here. The head keeps its size, because pooling gives 7 x 7 positions for images of any size. The
convolutions compute 49 times less than for images of 224 x 224, which take minutes on a few cores.
"""

import torchvision
from torch import nn
from torch.nn import functional as F

TITLE = "VGG16, ImageNet head"
DATA = "cifar10"
loss = F.cross_entropy


def build() -> nn.Module:
    # 1000 outputs also for data with fewer classes, so the gradient keeps its size.
    return torchvision.models.vgg16(weights=None)
