"""Reports whether a node has a run's folder, its number of GPUs, and a free port, as JSON. No torch.

python -m dlgs_bench.launch.node_report <the run's folder>
"""

import json
import sys
from pathlib import Path

from dlgs_bench.launch import gpus, nodes

if __name__ == "__main__":
    seen = Path(sys.argv[1]).exists()
    print(json.dumps({"seen": seen, "gpus": len(gpus.visible()), "port": nodes.free_port()}))
