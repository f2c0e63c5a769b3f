# Regenerates every table and figure of the DLGS paper; see README.md.
from snakemake.utils import min_version

min_version("9.0")

if not workflow.overwrite_configfiles:

    configfile: "config/quick.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/functions.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/runs.smk"
include: "workflow/rules/calibrate.smk"
include: "workflow/rules/artefacts.smk"


# Every study has a target of its own name. A study that defines no such rule gets one for its STUDY_TARGETS.
for study in studies.names():
    FIRST = len(STUDY_TARGETS)

    include: f"workflow/studies/{study}/{study}.smk"

    TARGETS_OF[study] = STUDY_TARGETS[FIRST:]

    if study not in [one.name for one in workflow.rules]:

        rule:
            name:
                study
            input:
                TARGETS_OF[study],


check_report()


rule all:
    default_target: True
    input:
        TARGETS,


rule studies:
    input:
        STUDY_TARGETS,


check_targets()


# On a cluster only runs are jobs. All other rules take seconds, so they run where Snakemake runs.
workflow.localrules(*(one.name for one in workflow.rules if "gpu" not in one.resources))
