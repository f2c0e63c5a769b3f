"""signSGD with majority vote: each worker sends signs, and the aggregate is the sign of their sum."""

import torch

from dlgs_bench.exchange import Method, Sum


class Majority(Method):
    title = "Majority vote"
    keeps_signs = True

    def exchange(self, bucket, context):
        votes = yield Sum(bucket.gradient.sign())
        return torch.where(votes >= 0, 1.0, -1.0)
