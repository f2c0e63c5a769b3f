"""How far a run is, and how far the whole workflow is: small files that the launcher reads. No torch."""

import json
import time
from pathlib import Path
from statistics import fmean

QUEUE = "queue.json"


class Progress:
    """Tells the launcher how far the run is, at most twice a second."""

    def __init__(self, path: Path):
        self._path, self._last = path, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < 0.5 and done < total:
            return
        self._last = now
        fresh = self._path.with_suffix(".tmp")
        fresh.write_text(json.dumps({"done": done, "total": total}))
        fresh.replace(self._path)


def read(path: Path) -> dict | None:
    """What the file says, or None where there is none yet."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def announce(folder: Path, runs: list[str]) -> None:
    """Leave the names of all runs of the workflow in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / QUEUE).write_text(json.dumps(runs))


def whole(run: Path, spent_s: float) -> str:
    """The state of the whole workflow, seen from the folder of a run that has taken ``spent_s``.

    A run still to come is expected to take as long as finished ones of its kind and model, or, while
    there are none, as the mean of all finished ones.
    """
    folder = run.parent.parent
    names = read(folder / QUEUE) or []
    walls: dict[str, list[float]] = {}
    waiting = []
    for name in names:
        group = name.split("-")[0]  # kind/model
        finished = read(folder / name / "run.json")
        if finished:
            walls.setdefault(group, []).append(finished["wall_s"])
        else:
            waiting.append(group)
    if not names:
        return ""
    done = f"{len(names) - len(waiting)}/{len(names)} runs done"
    if not walls:
        return f"[{done}] "
    every = [wall for known in walls.values() for wall in known]
    left = sum(fmean(walls.get(group, every)) for group in waiting) - spent_s
    return f"[{done}, about {clock(max(0, left))} left] "


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
