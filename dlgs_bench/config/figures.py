"""The figures of every model: curves of its accuracy runs and one breakdown of its timing runs. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from dlgs_bench import plugins

# value -> the name of its file, and the beginning of its title
VALUES = {
    "train_accuracy": ("accuracy", "training accuracy of"),
    "train_loss": ("loss", "training loss of"),
    "test_perplexity": ("perplexity", "test perplexity of"),  # of text alone
    "breakdown": ("breakdown", "one iteration of"),
}


@dataclass(frozen=True)
class Figure:
    """``value``: a column of the tidy table of accuracy runs, or "breakdown". ``label``: the title in the report."""

    model: str
    value: str
    label: str
    caption: str  # the first sentence of the caption


def of_models(models: Iterable[str], numbers: dict[tuple[str, str], int], timed: bool) -> dict[str, Figure]:
    """The figures of these models, by the name of their files; ``numbers``: the paper's, by model and value."""
    return dict(
        _figure(model, value, numbers.get((model, value))) for model in models for value in _values(model, timed)
    )


def _values(model: str, timed: bool) -> list[str]:
    left_out = set() if timed else {"breakdown"}
    if plugins.describe("models", model)["metric"] != "perplexity":
        left_out.add("test_perplexity")
    return [value for value in VALUES if value not in left_out]


def _figure(model: str, value: str, number: int | None) -> tuple[str, Figure]:
    file, words = VALUES[value]
    title = f"{words} {plugins.describe('models', model)['title']}"
    if number:
        return f"figure{number:02}", Figure(model, value, f"Figure {number}", f"Figure {number}: {title}.")
    title = title[0].upper() + title[1:]
    return f"{file}-{model}", Figure(model, value, title, f"{title}.")
