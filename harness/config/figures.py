"""The figures of every model: two curves of its accuracy runs and one breakdown of its timing runs. No torch."""

from dataclasses import dataclass

from harness import plugins

# The paper's figures by model and value; the figures of other models carry their names.
NUMBERS = {
    ("resnet20", "train_accuracy"): 5,
    ("resnet20", "train_loss"): 6,
    ("vgg16", "train_accuracy"): 7,
    ("vgg16", "train_loss"): 8,
    ("resnet50", "train_accuracy"): 9,
    ("resnet50", "train_loss"): 10,
    ("resnet20", "breakdown"): 11,
    ("vgg16", "breakdown"): 12,
    ("resnet50", "breakdown"): 13,
}
# value -> how its file is called, and what it shows
VALUES = {
    "train_accuracy": ("accuracy", "training accuracy of"),
    "train_loss": ("loss", "training loss of"),
    "breakdown": ("breakdown", "one iteration of"),
}


@dataclass(frozen=True)
class Figure:
    """``value``: a column of the tidy table of accuracy runs, or "breakdown"; ``label``: what the report calls it."""

    model: str
    value: str
    label: str
    about: str  # the first sentence of the caption


def of_models(models: list[str]) -> dict[str, Figure]:
    """The figures of these models, by the name of their files."""
    return dict(_figure(model, value) for model in models for value in VALUES)


def _figure(model: str, value: str) -> tuple[str, Figure]:
    number, (file, words) = NUMBERS.get((model, value)), VALUES[value]
    about = f"{words} {plugins.describe('models', model)['title']}"
    if number:
        return f"figure{number:02}", Figure(model, value, f"Figure {number}", f"Figure {number}: {about}.")
    about = about[0].upper() + about[1:]
    return f"{file}-{model}", Figure(model, value, about, f"{about}.")
