"""Wire formats: what was packed is what is added, whichever entries were chosen, in as few bytes as promised."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.exchange.wire import FORMATS, Smallest

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
@settings(deadline=None, max_examples=200)
def test_what_is_packed_is_what_is_added(name, size, density, seed, kind):
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(size, generator=generator)[: round(density * size)]
    there_and_back(name, size, chosen.to(kind))
    there_and_back(name, size, chosen.sort().values.to(kind))


@every
@given(st.lists(st.one_of(st.integers(0, 300), st.sampled_from([254, 255, 256, 65534, 65535, 65536])), max_size=40))
@settings(deadline=None)
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
    """Bits for the place of an entry, at random places."""
    size = 2_000_000
    chosen = (torch.rand(size, generator=torch.Generator().manual_seed(0)) < density).nonzero().view(-1)
    message = there_and_back("smallest", size, chosen)
    n = len(chosen)
    assert 32 * (message.numel() - 1 - n) <= most_bits * n + 32


@pytest.mark.parametrize("indices", [[1, 1], [3, 10], [-1, 2]])
def test_wrong_indices_are_refused(indices):
    with pytest.raises(ValueError, match=r"unique and in \[0, 10\)"):
        Smallest.pack(torch.zeros(2), torch.tensor(indices), 10)
