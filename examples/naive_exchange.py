"""Top-K with error feedback in plain torch: slow, and easy to read.

A test checks that it gives the same bits as ``methods/topk.py`` with compiled selection.
Run it with: torchrun --standalone --nproc-per-node 2 examples/naive_exchange.py
"""

import torch
import torch.distributed as dist


def exchange(gradient: torch.Tensor, residual: torch.Tensor, k: int) -> torch.Tensor:
    """Return the mean over workers of each worker's k largest entries; the other entries stay in the residual.

    gradient, residual: shape (d,), of this worker. The result has shape (d,) and is the same on all workers.
    """
    workers = dist.get_world_size()
    corrected = residual + gradient / workers  # a sum over workers is then a mean
    indices = corrected.abs().topk(k).indices
    values = corrected[indices]
    residual.copy_(corrected)
    residual[indices] = 0

    all_values = [torch.empty_like(values) for _ in range(workers)]
    all_indices = [torch.empty_like(indices) for _ in range(workers)]
    dist.all_gather(all_values, values)
    dist.all_gather(all_indices, indices)
    aggregate = torch.zeros_like(gradient)
    for their_values, their_indices in zip(all_values, all_indices, strict=True):  # in rank order: equal bits
        aggregate[their_indices] += their_values
    return aggregate


if __name__ == "__main__":
    dist.init_process_group("gloo")
    residual, generator = torch.zeros(1000), torch.Generator().manual_seed(dist.get_rank())
    for step in range(5):
        aggregate = exchange(torch.randn(1000, generator=generator), residual, k=10)
        if dist.get_rank() == 0:
            print(f"step {step}: {aggregate.count_nonzero()} entries arrived, |residual| = {residual.norm():.2f}")
    dist.destroy_process_group()
