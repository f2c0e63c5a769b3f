# Tables and figures of OmniReduce, hybrid parallelism and alternating dense steps, and their claims: snakemake systems.
SYSTEMS_FILES = [
    file
    for name in (
        "sums",
        "omnireduce",
        "omnireduce-layers",
        "sparse_dense",
        "hybrid",
        "hybrid-learning",
    )
    for file in (f"{RESULTS}/{name}.csv", f"{FIGURE_FOLDER}/{name}.svg")
    if file in STUDY_TARGETS
]
SYSTEMS_TABLES = {
    "sums": f"{RESULTS}/sums.csv",
    "training": f"{RESULTS}/omnireduce.csv",
    "layers": f"{RESULTS}/omnireduce-layers.csv",
}
if studied("sparse_dense"):
    SYSTEMS_TABLES["points"] = f"{RESULTS}/sparse_dense_points.csv"
if f"{RESULTS}/hybrid.csv" in SYSTEMS_FILES:
    SYSTEMS_TABLES["hybrids"] = f"{RESULTS}/hybrid.csv"
    SYSTEMS_TABLES["learning"] = f"{RESULTS}/hybrid-learning.csv"
# Without a testbed there are only accuracies, and without methods/sparse_dense.py not even these.
if all(map(studied, ("sums", "omnireduce"))):
    SYSTEMS_FILES.append(f"{RESULTS}/systems.csv")
    STUDY_TARGETS.append(f"{RESULTS}/systems.csv")


rule systems:
    input:
        SYSTEMS_FILES,


use rule artefact as systems_table with:
    input:
        **SYSTEMS_TABLES,
    output:
        **table_files("systems", "Claims of other systems"),
    params:
        **script_params("workflow/studies/systems/table.py"),
    log:
        f"{RESULTS}/logs/systems.log",
