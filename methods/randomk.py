"""Random-k: k random entries of each bucket, the same on all workers, are summed by a dense sum."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch

from dlgs_bench.exchange import Bucket, Ratio, Requests, StepContext, Sum


@dataclass
class RandomK(Ratio):
    """Random entries, drawn in every step (Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, NeurIPS 2018).

    The indices depend only on the seed, the step and the bucket, so they are not sent. torch's generator is not used.
    """

    title = "random-k"
    scope = "size"
    conserves_mass = "bits"

    seed: Annotated[int, ">= 0"] = 0

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        numbers = np.random.default_rng([self.seed, context.step, bucket.index])
        drawn = numbers.choice(bucket.size, self.k(bucket), replace=False, shuffle=False)
        chosen = torch.from_numpy(drawn).to(bucket.gradient.device)
        corrected = self.accumulate(bucket)
        values = corrected[chosen]
        corrected.index_fill_(0, chosen, 0)
        total = yield Sum(values)
        return bucket.gradient.zero_().index_copy_(0, chosen, total)
