"""A bag of embeddings for text in bytes: most of its gradient is whole rows of zeros.

The next byte is told from the last 1, 2, 3 and 4 bytes. Each of these n-grams is hashed to a row of one table; the
rows' sum goes through a small network (hashed n-grams: Joulin et al., Bag of Tricks for Efficient Text
Classification, 2017). A batch of 512 bytes meets at most 2,048 of the 65,536 rows.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "Embedding bag"
DATA = "text"
loss = F.cross_entropy

TOKENS = 256
LONGEST = 4  # bytes of an n-gram
ROW_BITS = 16
WIDTH = 128
HASH = 0x9E3779B1  # 2^32 / the golden ratio, as in Knuth's multiplicative hashing


class EmbeddingBag(nn.Module):
    """Tokens (n, t), int64 -> scores of the next token (n, TOKENS, t)."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2**ROW_BITS, WIDTH)
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        bag = self.table(rows(tokens)).sum(2)
        return self.head(F.relu(self.hidden(bag))).transpose(1, 2)


def rows(tokens: Tensor) -> Tensor:
    """The rows of the n-grams of 1 .. LONGEST bytes that end at each token, (n, t, LONGEST), int64."""
    gram, found = torch.zeros_like(tokens), []
    for back in range(LONGEST):
        before = F.pad(tokens + 1, (back, 0))[:, : tokens.shape[1]]  # 0 where the sample has not begun
        gram = gram * (TOKENS + 1) + before
        found.append((gram * HASH & 0xFFFFFFFF) >> (32 - ROW_BITS))
    return torch.stack(found, 2)


def build() -> nn.Module:
    model = EmbeddingBag()
    nn.init.normal_(model.table.weight, std=0.1)
    return model
