"""Runs an example of a framework to its end, and to its half and on, for test_frameworks; arguments: the example's name
and a folder."""

import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main(name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = {}
    for run, length in (("whole", 6), ("resumed", 3), ("resumed", 6)):
        net = example.train(folder / run, length)
        found[f"{run} {length}"] = [p.detach().clone() for p in net.parameters()]
    torch.save(found, folder / f"found.{dist.get_rank() if dist.is_initialized() else 0}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
