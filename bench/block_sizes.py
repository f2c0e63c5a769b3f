"""The share of a gradient's blocks that is not zero, by block size: what OmniReduce sends of one worker's gradient.

    python bench/block_sizes.py results/bench [data]

One worker trains each model for ``STEPS`` steps, as in ``codes.py``. The blocks are of the last step's message, which
is the whole model in one piece. Embedding bag and LSTM send everything, VGG16 the k largest entries of gradient +
residual. VGG16 needs the file cifar10.npz in the folder ``data``; without it, the other models are counted alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from arguments import DATA, parser
from codes import available, gradients
from saving import save

from dlgs_bench.buckets import num_entries
from dlgs_bench.comm.blocks import nonzero_blocks
from dlgs_bench.training.results import machine

RATIOS = {"embedding": (1.0,), "lstm": (1.0,), "vgg16": (0.1, 0.01)}  # the part of the entries that is sent
BLOCKS, STEPS = (1, 64, 256, 1024), 10  # a block of 1: the entries themselves


def message(corrected: Tensor, ratio: float) -> Tensor:
    """The k largest entries of a tensor (n,), all others zero."""
    chosen = corrected.abs().topk(num_entries(ratio, len(corrected))).indices
    return torch.zeros_like(corrected).index_copy(0, chosen, corrected[chosen])


def measure(model: str, root: Path) -> Iterator[dict]:
    for ratio in RATIOS[model]:
        sent = message(torch.cat(gradients(model, root, ratio, STEPS)), ratio)
        for block in BLOCKS:
            share = nonzero_blocks(sent, block).float().mean().item()
            yield {"model": model, "ratio": ratio, "entries": len(sent), "block": block, "nonzero": share}


def main(folder: Path, root: Path) -> None:
    torch.set_num_threads(1)
    rows = [row for model in available(RATIOS, root) for row in measure(model, root)]
    words = f"The share of blocks that are not zero in the message of step {STEPS}; {machine('cpu')}."
    save(rows, folder, "block-sizes", words)


if __name__ == "__main__":
    asked = parser(__doc__, DATA).parse_args()
    main(asked.folder, asked.data)
