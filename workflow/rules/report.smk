# Tables, figures and the report, from scores.json and the searches' files alone: no torch, but for galleries.

from autoseg.paper.tables import with_targets

METRICS = {search: P.search(search).metric for search in P.searches}
# For the report's commands; `input` among its arguments: the place of a config makes no report out of date.
CONFIG_FILE = " ".join(os.path.relpath(path) for path in workflow.overwrite_configfiles)


rule table:
    input:
        lambda w: scores(table_runs(P.tables[w.table])),
    output:
        md=f"{OUT}/tables/{{table}}.md",
        csv=f"{OUT}/tables/{{table}}.csv",
        tex=f"{OUT}/tables/{{table}}.tex",
        html=report(
            f"{OUT}/tables/{{table}}.html",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
    log:
        f"{OUT}/logs/tables/{{table}}.log",
    benchmark:
        f"{OUT}/logs/tables/{{table}}.tsv"
    localrule: True
    conda:
        ENV
    params:
        searches=searches_folder,
        table=lambda w: as_argument(with_targets(P.tables[w.table], METRICS)),
        stem=lambda w, output: output.md.removesuffix(".md"),
    shell:
        "autoseg table {input:q} --table {params.table:q} --searches {params.searches} --out {params.stem:q} 2> {log:q}"


rule figure:
    input:
        figure_inputs,
    output:
        png=f"{OUT}/figures/{{figure}}.png",
        svg=report(
            f"{OUT}/figures/{{figure}}.svg",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        f"{OUT}/logs/figures/{{figure}}.log",
    benchmark:
        f"{OUT}/logs/figures/{{figure}}.tsv"
    conda:
        ENV
    resources:
        runtime=lambda w, attempt: 30 * attempt,
        mem_mb=lambda w, attempt: 8000 * attempt,
    params:
        results=results_folder,
        figure=lambda w: as_argument(P.figures[w.figure]),
        window=lambda w: figure_window(P.figures[w.figure]),
        stem=lambda w, output: output.png.removesuffix(".png"),
    shell:
        "autoseg figure --figure {params.figure:q} --results {params.results} {params.window} --out {params.stem:q} 2> {log:q}"


rule make_report:
    input:
        tables=expand("{out}/tables/{table}.html", out=OUT, table=P.tables),
        figures=expand("{out}/figures/{figure}.svg", out=OUT, figure=P.figures),
        surrogates=expand("{out}/searches/{search}/surrogate.json", out=OUT, search=P.searches),
    output:
        report(f"{OUT}/report.html", caption="../report/report.rst", category="Report"),
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/logs/report.tsv"
    localrule: True
    conda:
        ENV
    params:
        results=results_folder,
        config_file=lambda w, input: flags({"config_file": CONFIG_FILE or None}),
        # Without what changes no result: that should not make a report out of date.
        config=lambda w: as_argument(P, exclude={"workers"}, exclude_defaults=True),
    shell:
        "autoseg report --config {params.config:q} {params.config_file} --results {params.results} --out {output:q} 2> {log:q}"
