"""Cast: a dense sum in 16 bits, the baseline that every other method has to beat."""

from dataclasses import dataclass
from typing import Literal

import torch

from dlgs_bench.exchange import Bucket, Method, StepContext, Sum


@dataclass
class Cast(Method):
    """Round to 16 bits, sum in 16 bits, as the hooks of PyTorch's DistributedDataParallel do (Li et al., PyTorch
    Distributed, VLDB 2020). Han et al. (Beyond Throughput and Compression Ratios, arXiv 2407.01378, 2024) show that
    speed-ups over 32 bits flatter every method that this baseline does not stand beside.

    ``float16`` has 11 significant bits, but loses what is below 3e-8 and is infinite from 65,520. ``bfloat16`` has 8,
    and float32's range; Horovod's own all-reduce cannot add it up, our ``ring`` can.
    """

    title = "16 bits"
    scope = "size"
    baseline = True
    elementwise = True
    relative_error = 2**-8  # of bfloat16; of float16 2**-11

    dtype: Literal["float16", "bfloat16"] = "float16"

    def exchange(self, bucket: Bucket, context: StepContext):
        total = yield Sum(bucket.gradient.to(getattr(torch, self.dtype)))
        return bucket.gradient.copy_(total)
