# autoseg: from data sets to tables. You name the tables (in the config); everything behind them follows.
#
#   snakemake --cores all                                   the demo: synthetic data, minutes on a laptop
#   snakemake --cores all --configfile workflow/config/paper.yaml -n     what the whole paper would run
#   snakemake --cores all searches                          all searches; also: prepare, runs, tables, figures, report
#
# results/<name>/                                           <name> is the config's
#   data/<dataset>/        index.json, cache-*.bin, split.json
#   searches/<search>/     step-<t>/proposals.json, step-<t>/trial-<n>.json, rescore/, surrogate.json
#   tunings/<tuning>/      trial-<n>.json, tuning.json
#   runs/<dataset>/<retraining>/<loss>/seed-<n>/            run.json, weights.safetensors, scores.json
#   tables/<table>.md .csv .tex .html      figures/<figure>.png .svg      report.html

import os

from snakemake.utils import min_version

from autoseg.pipeline.snakemake_private import given_configfiles, is_planned

min_version("9.0")

if not given_configfiles(workflow):

    # Only when no configfile was given: Snakemake merges configs key by key, and two would mix.
    configfile: os.path.join(workflow.basedir, "workflow/config/demo.yaml")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/tune.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/cluster.smk"


localrules:
    all,
    prepare,
    searches,
    runs,
    tables,
    figures,
    report,


SPLITS = [PATHS.split(dataset) for dataset in P.datasets]
SURROGATES = [PATHS.surrogate(search) for search in P.searches]
TIMINGS = [PATHS.timing(search) for search, plan in P.searches.items() if plan.hours]
SCORES = [PATHS.scores(run) for run in P.runs]
TABLES = [PATHS.table(table, ".md") for table in P.tables]
FIGURES = [PATHS.figure(figure, ".svg") for figure in P.figures]


rule all:
    default_target: True
    input:
        PATHS.report,
        TABLES,
        FIGURES,
        # Tables need these anyway; named here, a deleted one is missed and made again.
        SURROGATES,
        TIMINGS,
        SCORES,


rule prepare:
    input:
        SPLITS,


rule searches:
    input:
        SURROGATES,
        TIMINGS,


rule runs:
    input:
        SCORES,


rule tables:
    input:
        TABLES,


rule figures:
    input:
        FIGURES,


rule report:
    input:
        PATHS.report,


onsuccess:
    if is_planned(workflow, "make_report"):
        print(f"Done. Open {PATHS.report}, or read {PATHS.folder}/tables/.")
