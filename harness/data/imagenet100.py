"""The 100 classes of ImageNet-100."""

from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "models" / "imagenet100.txt"


def class_ids() -> list[str]:
    """The 100 class ids, sorted: labels follow the order of the folders."""
    return sorted(line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
