"""English text for language models, with one token per byte, from the documentation that Python contains."""

from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

from dlgs_bench.data import DataSet, Shard, evaluation_indices, training_indices

LENGTH = 64  # tokens in a sample
TRAINING = 0.95  # share of the text for training; the rest is for tests


class Text(DataSet):
    """Python's help topics as 256 kinds of tokens, in windows that do not overlap.

    Inputs and targets are (n, 64), int64. Each target is the token after its input. The text comes from the running
    version of Python, and differs between versions. Nothing is downloaded.
    """

    title = "Python's documentation (bytes)"
    metric = "perplexity"
    classes = 256

    def __init__(self, root: Path, device: torch.device) -> None:
        text = "".join(topics[name] for name in sorted(topics)).encode()
        tokens = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64)).to(device)
        border = int(TRAINING * len(tokens))
        self._train, self._test = windows(tokens[:border]), windows(tokens[border:])
        self.train_size, self.test_size = len(self._train), len(self._test)
        self._device = device

    def batch(self, step: int, shard: Shard) -> tuple[Tensor, Tensor]:
        return self._pairs(self._train, training_indices(self.train_size, step, shard))

    def test(self, batch: int, shard: Shard, limit: int) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in evaluation_indices(self.test_size, batch, shard, limit):
            yield self._pairs(self._test, indices)

    def _pairs(self, samples: Tensor, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        chosen = samples[torch.from_numpy(indices).to(self._device)]
        return chosen[:, :-1].contiguous(), chosen[:, 1:].contiguous()

    @staticmethod
    def example() -> Tensor:
        return torch.zeros(1, LENGTH, dtype=torch.int64)


def windows(tokens: Tensor) -> Tensor:
    """Tokens (t,) -> windows (n, LENGTH + 1). The last token of a window is the first token of the next window."""
    return tokens.unfold(0, LENGTH + 1, LENGTH)
