"""An LSTM language model whose tokens are hashed n-grams, as in the embedding bag; most rows of its table's gradient
are zero.

The model predicts the next byte. The sum of the rows of the n-grams that end at a byte is the input of an LSTM
(Hochreiter and Schmidhuber, Long Short-Term Memory, 1997).
"""

from torch import Tensor, nn
from torch.nn import functional as F

from .embedding import ROW_BITS, TOKENS, WIDTH, rows

TITLE = "LSTM"
DATA = "text"
loss = F.cross_entropy


class Lstm(nn.Module):
    """Tokens (n, t), int64 -> scores of the next token (n, TOKENS, t)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2**ROW_BITS, WIDTH)
        self.lstm, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.table(rows(tokens)).sum(2))
        return self.head(outputs).transpose(1, 2)


def build() -> nn.Module:
    model = Lstm()
    nn.init.normal_(model.table.weight, std=0.1)
    return model
