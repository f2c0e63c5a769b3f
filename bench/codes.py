"""The bits per sent entry of each code of the indices, on gradients of a training, compared with the entropy.

    python bench/codes.py results/bench [data]

One worker trains a model with error feedback for ``STEPS`` steps. In each step, the k largest entries of gradient +
residual are sent. The messages of the last step are coded: one for the whole model, as Top-K sends it, or one for each
layer, as LAGS and alternating sparse and dense steps send them. Bits are counted, not estimated, with all words that a
message has in addition to its values. Bitmap: one bit for each entry of the bucket. Entropy: log2 of the number of ways
to choose k of the bucket's entries, the lower limit of a code that assumes nothing about their positions. ResNet-20
needs the file cifar10.npz in the folder ``data``. Without it, the other model is counted alone.
"""

import sys
from collections.abc import Iterable, Iterator
from math import lgamma, log
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import DATA, parser
from saving import save

from dlgs_bench import data, plugins
from dlgs_bench.buckets import num_entries
from dlgs_bench.data import Shard
from dlgs_bench.exchange.wire import FORMATS
from dlgs_bench.training.build import build
from dlgs_bench.training.results import machine

MODELS = ("resnet20", "transformer_small")
RECIPES = {"resnet20": (0.05, 32), "transformer_small": (0.05, 16)}  # the learning rate and the batch
RECIPES |= {"vgg16": (0.01, 8), "embedding": (0.05, 8), "lstm": (0.05, 8)}  # of block_sizes.py and lossless.py
RECIPES |= {"resnet50": (0.01, 8)}  # of lossless.py
STAND_INS = {"resnet50": "cifar10"}  # data instead of the model's own
RATIOS, STEPS = (0.1, 0.01, 0.001), 30
CODES = ["bitmap", *FORMATS]


def available(models: Iterable[str], root: Path) -> list[str]:
    """The models whose data are there: without the file cifar10.npz, models of CIFAR-10 are left out."""
    return [model for model in models if data_of(model) != "cifar10" or (root / "cifar10.npz").exists()]


def data_of(model: str) -> str:
    """The name of the data that a model is trained on."""
    return STAND_INS.get(model, plugins.load("models", model).DATA)


def gradients(model: str, root: Path, ratio: float, steps: int) -> list[Tensor]:
    """Gradient + residual of each layer in the last of ``steps`` steps; the k largest entries of the model are sent."""
    torch.manual_seed(0)
    module, (lr, batch) = plugins.load("models", model), RECIPES[model]
    net, source = build(module), data.load(data_of(model))(root, torch.device("cpu"))
    parameters, shard = [p for p in net.parameters() if p.requires_grad], Shard(batch, 1, 0, 0)
    sizes = [p.numel() for p in parameters]
    residual = torch.zeros(sum(sizes))
    for step in range(steps):
        inputs, targets = source.batch(step, shard)
        module.loss(net(inputs), targets).backward()
        corrected = residual + torch.cat([p.grad.flatten() for p in parameters])
        chosen = corrected.abs().topk(num_entries(ratio, len(corrected))).indices
        update = torch.zeros_like(corrected)
        update[chosen] = corrected[chosen]
        residual = corrected - update
        with torch.no_grad():
            for parameter, change in zip(parameters, update.split(sizes), strict=True):
                parameter -= lr * change.view_as(parameter)
                parameter.grad = None
    return list(corrected.split(sizes))


def bits_of(buckets: list[Tensor], ratio: float) -> dict[str, float]:
    """The bits per sent entry, without its value, of each code and of the entropy; one message per bucket."""
    bits, sent = dict.fromkeys([*CODES, "entropy"], 0.0), 0
    for bucket in buckets:
        size, k = len(bucket), num_entries(ratio, len(bucket))
        chosen = bucket.abs().topk(k).indices.sort().values
        bits["bitmap"] += 8 * -(-size // 8)
        for name, code in FORMATS.items():
            bits[name] += 32 * (len(code.pack(bucket[chosen], chosen, size)) - k)
        bits["entropy"] += (lgamma(size + 1) - lgamma(k + 1) - lgamma(size - k + 1)) / log(2)
        sent += k
    return {name: count / sent for name, count in bits.items()}


def measure(model: str, root: Path, steps: int) -> Iterator[dict]:
    for ratio in RATIOS:
        layers = gradients(model, root, ratio, steps)
        for message, buckets in (("model", [torch.cat(layers)]), ("layer", layers)):
            metadata = {"model": model, "ratio": ratio, "message": message, "messages": len(buckets)}
            yield metadata | bits_of(buckets, ratio)


def main(folder: Path, root: Path) -> None:
    torch.set_num_threads(1)
    rows = [row for model in available(MODELS, root) for row in measure(model, root, STEPS)]
    words = (
        f"Bits per sent entry, in addition to its value (32 bits), in step {STEPS} of a training with error feedback; "
    )
    save(
        rows, folder, "codes", f"{words}{machine('cpu')}. Other machines can round differently and send other entries."
    )


if __name__ == "__main__":
    asked = parser(__doc__, DATA).parse_args()
    main(asked.folder, asked.data)
