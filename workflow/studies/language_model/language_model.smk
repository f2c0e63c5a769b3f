# The perplexities of a small language model, from its kept runs:
# snakemake language_model --configfile config/language_model.yaml. Nothing is trained for it, and its files are kept, too.
LANGUAGE_MODEL = f"{workflow.basedir}/results/reference-language-model"
LANGUAGE_MODEL_CAPTION = "Test perplexity of the small language model. " + (
    fingerprint.docstring("workflow/scripts/curve.py")
)


rule language_model:
    input:
        f"{LANGUAGE_MODEL}/perplexity.csv",
        f"{LANGUAGE_MODEL}/perplexity.svg",


use rule artefact as language_model_table with:
    input:
        accuracy=f"{LANGUAGE_MODEL}/accuracy.csv",
    output:
        csv=f"{LANGUAGE_MODEL}/perplexity.csv",
        md=f"{LANGUAGE_MODEL}/perplexity.md",
        tex=temp(f"{RESULTS}/language-model.tex"),
        html=temp(f"{RESULTS}/language-model.html"),
    params:
        **script_params("workflow/scripts/perplexity.py"),
    log:
        f"{RESULTS}/logs/language-model.log",


use rule artefact as language_model_figure with:
    input:
        tidy=f"{LANGUAGE_MODEL}/accuracy.csv",
        kept=[],
    output:
        svg=f"{LANGUAGE_MODEL}/perplexity.svg",
        png=temp(f"{FIGURE_FOLDER}/language-model.png"),
    params:
        **script_params("workflow/scripts/curve.py", LANGUAGE_MODEL_CAPTION),
        model="transformer_small",
        value="test_perplexity",
        recipe=recipe("transformer_small"),
        kept_recipe={},
    log:
        f"{RESULTS}/logs/figure-language-model.log",
