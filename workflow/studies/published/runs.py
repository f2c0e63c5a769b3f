"""An accuracy run of ResNet-20 for each published row with a variant, and for each seed.

There is none for a method whose file is missing, or if another optimizer than SGD trains the model.
"""

import csv
from pathlib import Path

from dlgs_bench import plugins
from dlgs_bench.config import grid
from dlgs_bench.config.variants import Variant
from dlgs_bench.spec import RunSpec

PUBLISHED, MODEL = Path(__file__).with_name("published.csv"), "resnet20"


def runs(values: dict) -> dict[str, RunSpec]:
    if values["models"].get(MODEL, {}).get("optimizer") != "sgd":
        return {}
    study, usable = values["studies"]["published"], plugins.usable("methods")
    samples = {"evaluations": 1, "test_samples": study["test_samples"], "final_test_samples": study["test_samples"]}
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["variant"] and row["method"] in usable]
    specs = {}
    for row in rows:
        ratio = float(row["ratio"]) if row["ratio"] else None
        if ratio not in [None, *study["ratios"]]:
            continue
        options = {"error_feedback": row["error_feedback"] == "true"} if row["error_feedback"] else {}
        variant = Variant(row["variant"], row["method"], row["variant"], options)
        recipe = values["models"][MODEL] | {"train_epochs": study["train_epochs"]}
        models = {MODEL: recipe | ({"momentum": 0.0} if row["optimizer"] == "plain" else {})}
        trained = values | {"models": models, "accuracy": values["accuracy"] | samples}
        for seed in values["seeds"]:
            spec = grid.accuracy_run(trained, MODEL, variant, ratio, seed)
            specs[f"accuracy/published-{grid.accuracy_name(spec)}"] = spec
    return specs
