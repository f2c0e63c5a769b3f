"""Record a profile of a training job, from which a prediction for another network is made.

PYTHONPATH=. torchrun --standalone --nproc-per-node 2 examples/probe_ddp.py profile.json
dlgs-bench advise profile.json --workers 16 --link-mbit 10000
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dlgs_bench.probe import record


def main(path: str) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    torch.manual_seed(1 + dist.get_rank())  # each worker draws samples of its own
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, optimizer, path, steps=10, methods=["topk"]):  # without ``methods``, all are measured
        for _ in range(20):
            optimizer.zero_grad()
            images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
