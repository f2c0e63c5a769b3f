# Training over OmniReduce compared with other sums, and the blocks of zeros of each layer.
OMNIREDUCE_LAYERS = [run for run in studied("omnireduce") if "-layers-" in run]
OMNIREDUCE_TIMED = [run for run in studied("omnireduce") if "-layers-" not in run]
OMNIREDUCE_MODELS = {
    spec.training.model: plugins.describe("models", spec.training.model)["title"]
    for spec in CONFIG.studies["omnireduce"].values()
}

if studied("omnireduce"):
    STUDY_TARGETS += [
        f"{RESULTS}/omnireduce.csv",
        f"{RESULTS}/omnireduce-layers.csv",
        f"{FIGURE_FOLDER}/omnireduce.svg",
    ]


use rule artefact as omnireduce_table with:
    input:
        tables("timing", "iterations.csv", OMNIREDUCE_TIMED),
    output:
        **table_files("omnireduce", "Training over OmniReduce"),
    params:
        **script_params("workflow/studies/omnireduce/table.py")
        | {"models": OMNIREDUCE_MODELS},
    log:
        f"{RESULTS}/logs/omnireduce.log",


use rule artefact as omnireduce_layers with:
    input:
        tables("timing", "sent.csv", OMNIREDUCE_LAYERS),
    output:
        **table_files("omnireduce-layers", "Blocks of zeros by layer"),
    params:
        **script_params("workflow/studies/omnireduce/layers.py")
        | {"models": OMNIREDUCE_MODELS},
    log:
        f"{RESULTS}/logs/omnireduce-layers.log",


use rule artefact as omnireduce_figure with:
    input:
        table=f"{RESULTS}/omnireduce.csv",
    output:
        **figure_files("omnireduce", "Training over OmniReduce"),
    params:
        **script_params("workflow/studies/omnireduce/figure.py")
        | {"models": OMNIREDUCE_MODELS},
    log:
        f"{RESULTS}/logs/figure-omnireduce.log",
