# autoseg: from data sets to tables. You name the tables (in the config); everything behind them follows.
#
#   snakemake --cores all                                   the demo: synthetic data, minutes on a laptop
#   snakemake --cores all --configfile workflow/config/paper.yaml -n     what the whole paper would run
#   snakemake --cores all searches                          all searches; also: prepare, runs, tables, figures, report
#
# results/<name>/                                           <name> is the config's
#   data/<dataset>/        index.json, statistics.json, cache-*.bin, split.json
#   searches/<search>/     search.json, step-<t>/proposals.json, step-<t>/trial-<n>.json, rescore/, surrogate.json
#   runs/<dataset>/<retraining>/<loss>/seed-<n>/            run.json, weights.safetensors, scores.json
#   tables/<table>.md .csv .tex .html      figures/<figure>.png .svg      report.html

import os

if not workflow.overwrite_configfiles:

    # Only when no configfile was given: Snakemake merges configs key by key, and two would mix.
    configfile: os.path.join(workflow.basedir, "workflow/config/demo.yaml")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/search.smk"
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


rule all:
    default_target: True
    input:
        f"{OUT}/report.html",
        expand("{out}/tables/{table}.md", out=OUT, table=P.tables),
        expand("{out}/figures/{figure}.svg", out=OUT, figure=P.figures),
        # Behind the tables anyway; named here, a deleted one is missed and made again.
        expand("{out}/searches/{search}/surrogate.json", out=OUT, search=P.searches),
        expand("{out}/runs/{run}/scores.json", out=OUT, run=P.runs),


rule prepare:
    input:
        expand("{out}/data/{dataset}/split.json", out=OUT, dataset=P.datasets),


rule searches:
    input:
        expand("{out}/searches/{search}/surrogate.json", out=OUT, search=P.searches),


rule runs:
    input:
        expand("{out}/runs/{run}/scores.json", out=OUT, run=P.runs),


rule tables:
    input:
        expand("{out}/tables/{table}.md", out=OUT, table=P.tables),


rule figures:
    input:
        expand("{out}/figures/{figure}.svg", out=OUT, figure=P.figures),


rule report:
    input:
        f"{OUT}/report.html",


onsuccess:
    # A part of it, such as one table, leaves a report as old as it was.
    if any(job.rule.name == "make_report" for job in workflow.dag.jobs):
        print(f"Done. Open {OUT}/report.html, or read {OUT}/tables/.")
