"""bench/codes.py: bits of the codes of indices, counted and compared with the entropy."""

import sys

import pytest
import torch
from support import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import block_sizes
import codes
import lossless

pytestmark = pytest.mark.unit


def test_bits_are_counted_with_all_words_of_a_message():
    """Every fourth of 64 entries is sent: gaps of 3 take one byte each, a bitmap takes 8 bytes; 1 and 2 more words."""
    bucket = torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(16)
    bits = codes.bits_of([bucket], 0.25)
    assert bits["indices"] == 32 and bits["bitmap"] == 64 / 16
    assert bits["smallest"] == (32 + 64) / 16 and bits["run-length"] == (64 + 8 * 16) / 16
    assert bits["entropy"] == pytest.approx(48.795 / 16, abs=1e-3)  # log2 of 64 over 16
    assert codes.bits_of([bucket, bucket], 0.25) == bits  # two messages, twice the entries


@pytest.mark.parametrize("ratio", codes.RATIOS)
def test_no_code_of_random_positions_is_shorter_than_the_entropy(ratio):
    bits = codes.bits_of([torch.rand(50_000, generator=torch.Generator().manual_seed(0))], ratio)
    assert all(bits[code] > bits["entropy"] for code in codes.CODES)
    assert bits["smallest"] < 1.01 * min(bits["bitmap"], bits["indices"], bits["run-length"]) + 1


def test_what_is_not_sent_stays_in_the_residual(tmp_path):
    layers = codes.gradients("transformer_small", tmp_path, 0.01, steps=2)
    sizes = [p.numel() for p in codes.build(codes.plugins.load("models", "transformer_small")).parameters()]
    assert [len(layer) for layer in layers] == sizes
    first = torch.cat(codes.gradients("transformer_small", tmp_path, 0.01, steps=1))
    second, sent = torch.cat(layers), first.abs() >= first.abs().topk(int(0.01 * len(first))).values[-1]
    rest = ~sent & (first.abs() > first.abs().median())
    assert torch.corrcoef(torch.stack([first[rest], second[rest]]))[0, 1] > 0.5  # the residual is a part of the second


def test_blocks_of_one_entry_are_the_entries_and_larger_blocks_hold_more_of_them(tmp_path, monkeypatch):
    """2 of 16 entries are sent, at the positions 3 and 5: in 2 of 16 blocks of 1, 2 of 8 of 2, 2 of 4 and 1 of 2."""
    corrected = torch.full((16,), 0.1)
    corrected[3], corrected[5] = -2.0, 3.0
    sent = block_sizes.message(corrected, 0.125)
    assert sent[[3, 5]].tolist() == [-2.0, 3.0] and sent.count_nonzero() == 2
    monkeypatch.setattr(block_sizes, "gradients", lambda model, *_: list(corrected.split(8)))
    monkeypatch.setattr(block_sizes, "BLOCKS", (1, 2, 4, 8))
    monkeypatch.setattr(block_sizes, "RATIOS", {"net": (0.125,)})
    rows = list(block_sizes.measure("net", tmp_path))
    assert [row["nonzero"] for row in rows] == [2 / 16, 2 / 8, 2 / 4, 1 / 2]


def test_lossless_bits_are_compared_with_the_entropy(monkeypatch, tmp_path):
    """Exponents of four equally frequent values have 2 bits, and 2.25 in a Huffman code that also has an end. 24 other
    bits are sent as they are."""
    gradient = torch.tensor([1.0, -2.0, 4.5, 0.0]).repeat(10_000)
    assert lossless.entropy(gradient) == pytest.approx(2)
    monkeypatch.setattr(lossless, "gradients", lambda *_: list(gradient.split(1000)))
    for row in lossless.measure("net", tmp_path):
        assert 26.25 <= row["float32"] < 26.3 and row["float32_part"] == row["float32"] / 32
        assert row["bf16"] == pytest.approx(10) and row["zeros"] == 0.25
