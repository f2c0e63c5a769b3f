"""Cast: a dense sum in 16 bits, a baseline for all other methods."""

from dataclasses import dataclass
from typing import Literal

import torch

from dlgs_bench.exchange import Bucket, Method, Requests, StepContext, Sum


@dataclass
class Cast(Method):
    """Round to 16 bits and sum in 16 bits, as the hooks of PyTorch's DistributedDataParallel do (Li et al., PyTorch
    Distributed, VLDB 2020).

    Han et al. (Beyond Throughput and Compression Ratios, arXiv 2407.01378, 2024) show that speed-ups over 32 bits are
    misleading without this baseline. ``float16`` has 11 significant bits; entries below 3e-8 become 0, and entries from
    65,520 become infinite. ``bfloat16`` has 8 significant bits and the range of float32. Horovod's all-reduce does not
    support ``bfloat16``; the collective ``ring`` does.
    """

    title = "16 bits"
    scope = "size"
    baseline = True
    elementwise = True
    rounds_to_16_bits = True
    relative_error = 2**-8  # with bfloat16; with float16 2**-11

    dtype: Literal["float16", "bfloat16"] = "float16"

    def exchange(self, bucket: Bucket, context: StepContext) -> Requests:
        total = yield Sum(bucket.gradient.to(getattr(torch, self.dtype)))
        return bucket.gradient.copy_(total)
