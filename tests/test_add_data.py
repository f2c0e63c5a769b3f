"""The data set that ``docs/add-a-data-set.md`` shows is one file, and trains."""

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import CPU, ROOT

from dlgs_bench.data import Shard

pytestmark = pytest.mark.unit

EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "docs/add-a-data-set.md").read_text(encoding="utf-8"), re.S).group(
    1
)


def test_the_example_of_a_data_set_is_addressed_by_step_and_shared_among_workers():
    module = ModuleType("dlgs_bench.data.rings")
    exec(EXAMPLE, vars(module))
    rings = module.Rings(Path(), CPU)
    shards = [Shard(50, 2, rank, seed=1) for rank in range(2)]
    batches = [rings.batch(step, shard) for step in range(rings.steps(shards[0])) for shard in shards]
    points, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert len(points) == rings.train_size and len(points.unique(dim=0)) == rings.train_size
    torch.testing.assert_close(points.norm(dim=1), 1.0 + labels)
    assert set(labels.tolist()) == set(range(rings.classes))
    assert points.shape[1:] == rings.example().shape[1:] and points.dtype == rings.example().dtype
    first, again = rings.batch(25, shards[0]), module.Rings(Path(), CPU).batch(25, shards[0])
    assert all(map(torch.equal, first, again))
    tested = [len(labels) for shard in shards for _, labels in rings.test(100, shard, 300)]
    assert sum(tested) == 300


def test_the_example_is_about_20_lines():
    assert len([line for line in EXAMPLE.splitlines() if line.strip()]) <= 30
