"""How much of a gradient a sum that leaves out blocks of zeros has to carry."""

from harness.comm.blocks import nonzero_blocks
from harness.training.flat import FlatModel


def block_density(flat: FlatModel, block: int) -> dict[str, float]:
    """By layer, last layer first: the part of the blocks of its gradient that are not zero, ``block`` entries each."""
    layers = (flat.slice(number, number + 1) for number in range(len(flat.names)))
    return {
        name: nonzero_blocks(layer, block).float().mean().item() for name, layer in zip(flat.names, layers, strict=True)
    }
