"""A small decoder-only transformer for text in bytes (after GPT-2, Radford et al., 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TITLE = "Transformer"
DATA = "text"
loss = F.cross_entropy

TOKENS = 256
LENGTH = 64  # the longest input
WIDTH = 384
HEADS = 6
BLOCKS = 6


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens (n, t), int64 -> scores of the next token (n, TOKENS, t), t up to LENGTH."""

    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.token(tokens) + self.position(places))
        return self.head(self.norm(x)).transpose(1, 2)


def build() -> nn.Module:
    model = Transformer()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # What blocks add to the residual sum is scaled down, so that the sum's variance stays near 1.
            added = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * BLOCKS) ** 0.5 if added else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model
