"""The figures of every model: two curves of its accuracy runs and one breakdown of its timing runs. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from dlgs_bench import plugins

# value -> the name of its file, and the beginning of its title
VALUES = {
    "train_accuracy": ("accuracy", "training accuracy of"),
    "train_loss": ("loss", "training loss of"),
    "breakdown": ("breakdown", "one iteration of"),
}


@dataclass(frozen=True)
class Figure:
    """``value``: a column of the tidy table of accuracy runs, or "breakdown". ``label``: the title in the report."""

    model: str
    value: str
    label: str
    about: str  # the first sentence of the caption


def of_models(models: Iterable[str], numbers: dict[tuple[str, str], int], timed: bool) -> dict[str, Figure]:
    """File name -> figure, for these models; ``numbers``: (model, value) -> number of the figure in the paper."""
    values = [value for value in VALUES if timed or value != "breakdown"]
    return dict(_figure(model, value, numbers.get((model, value))) for model in models for value in values)


def _figure(model: str, value: str, number: int | None) -> tuple[str, Figure]:
    file, words = VALUES[value]
    about = f"{words} {plugins.describe('models', model)['title']}"
    if number:
        return f"figure{number:02}", Figure(model, value, f"Figure {number}", f"Figure {number}: {about}.")
    about = about[0].upper() + about[1:]
    return f"{file}-{model}", Figure(model, value, about, f"{about}.")
