"""VGG16 with its ImageNet head, torchvision's: 138,357,544 parameters, of which 123,642,856 are fully connected.

It takes images of 32 x 32 here: the head stays whole, since pooling hands it 7 x 7 places whatever the image, but the
convolutions compute 49 times less than on images of 224 x 224, for which few cores need minutes.
"""

import torchvision
from torch import nn
from torch.nn import functional as F

TITLE = "VGG16, ImageNet head"
DATA = "cifar10"
loss = F.cross_entropy


def build() -> nn.Module:
    # 1000 outputs also on data of fewer classes: the head keeps its true size.
    return torchvision.models.vgg16(weights=None)
