"""Ok-Topk: each worker sums the chosen entries of one region; all workers gather the largest sums."""

import math
from dataclasses import dataclass, field
from typing import Annotated

import torch

from dlgs_bench.exchange import Bucket, Gather, Ratio, Requests, Selects, StepContext, Threshold
from dlgs_bench.exchange.steps import all_to_all, restore_unsent, sum_messages
from dlgs_bench.exchange.wire import Indices


@dataclass
class OkTopk(Selects, Ratio):
    """Near-optimal sparse all-reduce (Li, Hoefler, PPoPP 2022).

    The paper's bound of 6 k words per worker, for any number of workers, holds here between refreshes without error
    feedback. In a refresh step with N workers, a worker receives up to N k words more, because all sums are gathered.
    With error feedback the bound does not hold between refreshes either, because an entry whose sum was not selected
    stays in the residual and is sent again in the next step.

    One threshold selects the entries that a worker sends, and another selects sums. Both are computed exactly every
    ``refresh_every`` steps, when all sums are gathered, and reused in between. Every ``rebalance_every`` steps the
    regions are recomputed so that each receives the same number of entries. An entry leaves the residual if the worker
    sent it and its sum was selected.

    Timing runs measure the first step after a refresh for all steps that reuse thresholds, and later ones send more.
    """

    title = "Ok-Topk"
    scope = "model"
    link_growth = "(N - 1) / N"
    conserves_mass = "bits"
    state = ("thresholds", "cuts")

    refresh_every: Annotated[int, ">= 1"] = 32
    rebalance_every: Annotated[int, ">= 1"] = 64
    # By bucket: the thresholds of entries and of sums; the start of every region except the first.
    thresholds: dict[int, list[float]] = field(default_factory=dict, init=False, repr=False)
    cuts: dict[int, list[int]] = field(default_factory=dict, init=False, repr=False)

    @property
    def cycle(self) -> int:
        return math.lcm(self.refresh_every, self.rebalance_every)

    def phase(self, step: int) -> str:
        refresh, rebalance = (step - 1) % self.refresh_every == 0, (step - 1) % self.rebalance_every == 0
        names = [name for name, now in (("refresh", refresh), ("rebalance", rebalance)) if now]
        return " and ".join(names) or "reuse"

    def num_requests(self, bucket: Bucket, context: StepContext) -> int:
        return 2 + ("refresh" in self.phase(context.step)) + ("rebalance" in self.phase(context.step))

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        corrected, total, k, phase = self.accumulate(bucket), bucket.gradient, self.k(bucket), self.phase(context.step)
        of_entries, of_sums = self.thresholds.get(bucket.index, [0.0, 0.0])
        if "refresh" in phase or not of_entries:  # 0 after a step with fewer than k nonzero entries
            of_entries = self.selector.kth_magnitude(corrected, k)
        values, indices = self.selector.take(corrected, Threshold(of_entries))
        if "rebalance" in phase:
            quantiles = [len(indices) * i // context.workers for i in range(1, context.workers)]
            mine = indices[quantiles] if len(indices) else indices.new_zeros(context.workers - 1)
            every = yield Gather(mine.to(torch.int32), entries=0)
            self.cuts[bucket.index] = (torch.stack(every).long().sum(0) // context.workers).tolist()
        starts = torch.searchsorted(indices, indices.new_tensor(self.cuts[bucket.index])).tolist()
        regions = zip(values.tensor_split(starts), indices.tensor_split(starts), strict=True)
        messages = [Indices.pack(v, i, bucket.size) for v, i in regions]
        sent = len(indices) - len(messages[context.rank]) // 2
        sum_messages((yield from all_to_all(messages, context, sent, lengths_known=False)), total)
        if "refresh" in phase:
            sums = torch.cat((yield Gather(total[total != 0], entries=0)))
            of_sums = self.selector.kth_magnitude(sums, min(k, len(sums))) if len(sums) else 0.0
        self.thresholds[bucket.index] = [of_entries, of_sums]
        sums, positions = self.selector.take(total, Threshold(of_sums))
        gathered = yield Gather(Indices.pack(sums, positions, bucket.size), entries=len(sums))
        restore_unsent(corrected, values, indices, torch.cat([message[len(message) // 2 :] for message in gathered]))
        return sum_messages(gathered, total)
