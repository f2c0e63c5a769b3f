# The method that the time model predicts to be fastest. It needs links with a known rate.
if ANSWERED and VALUES["network"] == "testbed" and not grid.streams(VALUES):
    STUDY_TARGETS.append(f"{FIGURE_FOLDER}/map.svg")


use rule artefact as map_figure with:
    input:
        calibration=calibrated(
            "run.json", [layers_of, exchanges_of], ["selections"], among=usual
        ),
        prediction=f"{RESULTS}/prediction.csv",
    output:
        **figure_files("map", "Map of methods"),
    params:
        **script_params("workflow/studies/map/figure.py"),
    log:
        f"{RESULTS}/logs/figure-map.log",
