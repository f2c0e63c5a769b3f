"""How far the whole workflow is: the launchers of its runs look at what is done and say it. No torch."""

import json
from pathlib import Path
from statistics import fmean

QUEUE = "queue.json"


def _read(path: Path) -> dict | None:
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
    names = _read(folder / QUEUE) or []
    walls: dict[str, list[float]] = {}
    waiting = []
    for name in names:
        group = name.split("-")[0]  # kind/model
        finished = _read(folder / name / "run.json")
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


def spent(folder: Path) -> str:
    """What the finished runs below ``folder`` took, kind by kind, in words, or nothing where there are none."""
    walls: dict[str, float] = {}
    for path in sorted(folder.rglob("run.json")):
        run = _read(path)
        if run:
            kind = path.parent.parent.name
            walls[kind] = walls.get(kind, 0.0) + run["wall_s"]
    return ", ".join(f"{kind} {clock(wall)}" for kind, wall in walls.items())


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
