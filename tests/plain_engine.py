"""An engine whose launcher starts the ranks and does nothing else. Ranks that do not communicate need no other."""

import json
import sys

from dlgs_bench.engines import ENGINES, TorchDist


class Plain(TorchDist):
    """Unlike torchrun and horovodrun, its launcher does not import torch, which takes seconds."""

    def command(self, processes: int, program: list[str]) -> list[str]:
        ranks = [["env", f"RANK={rank}", *program] for rank in range(processes)]
        return [sys.executable, "-m", "dlgs_bench.launch.supervise", json.dumps(ranks)]


PLAIN = Plain(**vars(ENGINES["torch_dist"]) | {"name": "plain"})
