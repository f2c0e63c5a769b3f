"""A bag of embeddings for text in bytes; most rows of its gradient are zero.

The model predicts the next byte from the last 1, 2, 3 and 4 bytes. Each of these n-grams is hashed to a row of one
table. The sum of the rows is the input of a small network (hashed n-grams: Joulin et al., Bag of Tricks for Efficient
Text Classification, 2017). A batch of 512 bytes uses at most 2,048 of the 65,536 rows.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "Embedding bag"
DATA = "text"
loss = F.cross_entropy

TOKENS = 256
LONGEST = 4  # the longest n-gram, in bytes
ROW_BITS = 16
WIDTH = 128
HASH = 0x9E3779B1  # 2^32 / the golden ratio, as in Knuth's multiplicative hashing


class EmbeddingBag(nn.Module):
    """Tokens (n, t), int64 -> scores of the next token (n, TOKENS, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2**ROW_BITS, WIDTH)
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        bag = self.table(rows(tokens)).sum(2)
        return self.head(F.relu(self.hidden(bag))).transpose(1, 2)


def rows(tokens: Tensor) -> Tensor:
    """The table rows of the n-grams of 1 .. LONGEST bytes that end at each token, int64, (n, t, LONGEST)."""
    gram, hashes = torch.zeros_like(tokens), []
    for back in range(LONGEST):
        before = F.pad(tokens + 1, (back, 0))[:, : tokens.shape[1]]  # 0 before the start of the sample
        gram = gram * (TOKENS + 1) + before
        hashes.append((gram * HASH & 0xFFFFFFFF) >> (32 - ROW_BITS))
    return torch.stack(hashes, 2)


def build() -> nn.Module:
    model = EmbeddingBag()
    nn.init.normal_(model.table.weight, std=0.1)
    return model
