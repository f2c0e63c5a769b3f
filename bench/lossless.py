"""The bits per entry of the method ``lossless``, on gradients of a training, and of the entropy of their exponents.

    python bench/lossless.py results/bench [data]

One worker trains each model uncompressed, as in ``codes.py``. The whole gradient of the first step and of a later step
is coded. Float32 bits are counted. The code of the method is for float32; what bf16 would need is 8 bits of sign and
mantissa and the entropy of the exponents. Entries that are zero count, so a gradient with many zeros needs few bits.
ResNet-20, VGG16 and ResNet-50 need the file cifar10.npz in the folder ``data``. Without it, the other models are
counted alone.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import DATA, parser
from codes import available, gradients
from saving import save

from dlgs_bench import plugins
from dlgs_bench.training.results import machine

MODELS = ("resnet20", "vgg16", "resnet50", "transformer_small", "lstm", "embedding")
STEPS = (1, 30)


def entropy(gradient: Tensor) -> float:
    """Bits per entry of the exponents of a tensor, float32 (n,), if each is coded by its frequency."""
    parts = (gradient.view(torch.int32) >> 23 & 255).bincount() / len(gradient)
    return torch.special.entr(parts).sum().item() / math.log(2)


def measure(model: str, root: Path) -> Iterator[dict]:
    encode = plugins.load("methods", "lossless").encode
    for step in STEPS:
        gradient = torch.cat(gradients(model, root, 1.0, step))
        bits, exponents = 8 * len(encode(gradient)) / len(gradient), entropy(gradient)
        yield {"model": model, "step": step, "entries": len(gradient), "zeros": (gradient == 0).float().mean().item(),
               "exponents": exponents, "float32": bits, "float32_part": bits / 32,
               "bf16": 8 + exponents, "bf16_part": (8 + exponents) / 16}  # fmt: skip


def main(folder: Path, root: Path) -> None:
    torch.set_num_threads(1)
    rows = [row for model in available(MODELS, root) for row in measure(model, root)]
    words = "Bits per entry, and the part of uncompressed's 32 and 16 bits. float32: counted. bf16: computed from the "
    save(rows, folder, "lossless", f"{words}entropy of the exponents. {machine('cpu')}.")


if __name__ == "__main__":
    asked = parser(__doc__, DATA).parse_args()
    main(asked.folder, asked.data)
