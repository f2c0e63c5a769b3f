"""Wire formats: what was packed is what is added, whichever entries were chosen, in as few bytes as promised."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import examples

from dlgs_bench.exchange.wire import FORMATS, RunLength, Smallest

pytestmark = pytest.mark.unit

every = pytest.mark.parametrize("name", FORMATS)


def there_and_back(name: str, size: int, indices: torch.Tensor) -> torch.Tensor:
    """Pack random values at ``indices``, add them to a random vector, compare; returns the message."""
    values, before = torch.randn(len(indices)), torch.randn(size)
    message = FORMATS[name].pack(values, indices, size)
    assert message.dtype == torch.int32 and message.dim() == 1 and message.is_contiguous()
    found, expected = before.clone(), before.clone()
    expected[indices.long()] += values
    FORMATS[name].add(found, message)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    return message


@every
@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 2**16), st.sampled_from([torch.int32, torch.int64]))
@examples(4)
def test_what_is_packed_is_what_is_added(name, size, density, seed, kind):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(size, generator=generator)[: round(density * size)]
    there_and_back(name, size, chosen.to(kind))
    there_and_back(name, size, chosen.sort().values.to(kind))


@every
@given(st.lists(st.one_of(st.integers(0, 300), st.sampled_from([254, 255, 256, 65534, 65535, 65536])), max_size=40))
def test_gaps_of_any_length_with_the_last_place_taken(name, gaps):
    places = (torch.tensor(gaps, dtype=torch.int64) + 1).cumsum(0) - 1
    there_and_back(name, int(places[-1]) + 1 if gaps else 1, places.to(torch.int32))


@every
@pytest.mark.parametrize("size", [1, 7, 8, 9, 2**16 + 1])
def test_none_and_all_and_the_last(name, size):
    for chosen in (torch.arange(0), torch.arange(size), torch.tensor([size - 1])):
        there_and_back(name, size, chosen)


@pytest.mark.parametrize(
    "density, most_bits", [(1, 1.01), (0.5, 2.02), (0.2, 5.1), (0.1, 8.1), (0.01, 8.8), (0.001, 16.1), (1e-5, 32)]
)
def test_the_smallest_code_is_as_small_as_it_says(density, most_bits):
    """The bound is in bits per index, for random indices."""
    size = 2_000_000
    chosen = (torch.rand(size, generator=torch.Generator().manual_seed(0)) < density).nonzero().view(-1)
    message = there_and_back("smallest", size, chosen)
    n = len(chosen)
    assert 32 * (message.numel() - 1 - n) <= most_bits * n + 32


@pytest.mark.parametrize("gap, words", [(65534, 5), (65535, 6), (65536, 6)])
def test_a_gap_that_16_bits_cannot_hold_takes_two_numbers(gap, words):
    places = (torch.tensor([gap, *[300] * 9]) + 1).cumsum(0) - 1
    assert there_and_back("smallest", int(places[-1]) + 1, places).numel() == 1 + len(places) + words


@pytest.mark.parametrize("form", [Smallest, RunLength])
@pytest.mark.parametrize("indices", [[1, 1], [3, 10], [-1, 2]])
def test_wrong_indices_are_refused(form, indices):
    with pytest.raises(ValueError, match=r"not unique or not in \[0, 10\)"):
        form.pack(torch.zeros(2), torch.tensor(indices), 10)


def coded(x: torch.Tensor) -> torch.Tensor:
    """The entries of ``x`` that are not zero, run-length coded."""
    places = x.nonzero().view(-1)
    return RunLength.pack(x[places], places, len(x))


def runs_by_hand(x: list[float]) -> list[int]:
    """The bytes of the runs, entry by entry: an oracle without any of the code."""
    found, run = [], 0
    for entry in x:
        if entry == 0:
            run += 1
        else:
            found += [255] * (run // 255) + [run % 255]
            run = 0
    return found


numbers = st.floats(width=32, allow_nan=False).filter(bool)
zeros = st.integers(0, 600).map(lambda n: [0.0] * n)


@given(st.lists(st.one_of(zeros, st.lists(numbers, max_size=5)), max_size=12))
def test_what_is_run_length_coded_is_decoded_to_the_bit_and_coded_as_by_hand(parts):
    entries = list(itertools.chain(*parts))
    x = torch.tensor(entries)
    message, found = coded(x), torch.zeros(len(x))
    RunLength.add(found, message)
    assert torch.equal(found.view(torch.int32), x.view(torch.int32))
    runs, n = runs_by_hand(entries), int((x != 0).sum())
    assert message[:2].tolist() == [len(x), n]
    code = message[2 + n :].view(torch.uint8).tolist()
    assert code == runs + [0] * (-len(runs) % 4)


@pytest.mark.parametrize(
    "x, sent_bytes",
    [
        (torch.zeros(1000), 8),
        (torch.ones(1000), 8 + 4 * 1000 + 1000),
        (torch.cat([torch.ones(3), torch.zeros(997)]), 8 + 4 * 3 + 4),
        (torch.cat([torch.zeros(997), torch.ones(3)]), 8 + 4 * 3 + 8),
    ],
    ids=["all zero", "all dense", "trailing zeros", "leading zeros"],
)
def test_a_run_length_code_is_as_long_as_it_says(x, sent_bytes):
    found = torch.zeros(1000)
    RunLength.add(found, coded(x))
    assert torch.equal(found, x)
    assert coded(x).nbytes == sent_bytes


@pytest.mark.parametrize("size", [9, 12])
def test_a_run_length_code_of_another_bucket_is_refused(size):
    with pytest.raises(ValueError, match=f"a message of 10 entries does not fit a bucket of {size}"):
        RunLength.add(torch.zeros(size), coded(torch.ones(10)))
