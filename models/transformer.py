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

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Tokens (n, t), int64 -> scores of the next token (n, TOKENS, t), where t is at most LENGTH."""

    def __init__(self, width: int, heads: int, blocks: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.token(tokens) + self.position(positions))
        return self.head(self.norm(x)).transpose(1, 2)


def build(width: int = WIDTH, heads: int = HEADS, blocks: int = BLOCKS) -> nn.Module:
    model = Transformer(width, heads, blocks)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            # The outputs of blocks are scaled down, so that the variance of the residual sum stays near 1.
            is_output = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * blocks) ** 0.5 if is_output else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model
