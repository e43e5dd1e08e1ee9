# Tables, figures and the report, from scores.json and the searches' files alone: no torch, but for galleries.

from autoseg.report.tables import with_targets

METRICS = {search: P.search(search).metric for search in P.searches}


rule table:
    input:
        lambda w: INPUTS.scores(P.tables[w.table].runs),
    output:
        md=PATHS.table("{table}", ".md"),
        csv=PATHS.table("{table}", ".csv"),
        tex=PATHS.table("{table}", ".tex"),
        html=report(
            PATHS.table("{table}", ".html"),
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}"},
        ),
    log:
        PATHS.log("tables/{table}"),
    benchmark:
        PATHS.benchmark("tables/{table}")
    localrule: True
    conda:
        ENV
    params:
        table=lambda w: as_argument(with_targets(P.tables[w.table], METRICS)),
        searches=lambda w: PATHS.searches,
        stem=lambda w: PATHS.table(w.table),
    shell:
        "autoseg table {input:q} --table {params.table:q} --searches {params.searches:q} --out {params.stem:q} 2> {log:q}"


rule figure:
    input:
        lambda w: INPUTS.figure(P.figures[w.figure]),
    output:
        png=PATHS.figure("{figure}", ".png"),
        svg=report(
            PATHS.figure("{figure}", ".svg"),
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    log:
        PATHS.log("figures/{figure}"),
    benchmark:
        PATHS.benchmark("figures/{figure}")
    conda:
        ENV
    resources:
        runtime=lambda w, attempt: 30 * attempt,
        mem_mb=lambda w, attempt: 8000 * attempt,
    params:
        arguments=lambda w: ARGUMENTS.figure(P.figures[w.figure]),
        results=lambda w: PATHS.folder,
        stem=lambda w: PATHS.figure(w.figure),
    shell:
        "autoseg figure {params.arguments} --results {params.results:q} --out {params.stem:q} 2> {log:q}"


rule make_report:
    input:
        tables=[PATHS.table(table, ".html") for table in P.tables],
        figures=[PATHS.figure(figure, ".svg") for figure in P.figures],
        surrogates=[PATHS.surrogate(search) for search in P.searches],
    output:
        report(PATHS.report, caption="../report/report.rst", category="Report"),
    log:
        PATHS.log("report"),
    benchmark:
        PATHS.benchmark("report")
    localrule: True
    conda:
        ENV
    params:
        results=lambda w: PATHS.folder,
        # Without `loaders`, which changes no result and so must not make the report out of date.
        pipeline=lambda w: as_argument(P, exclude={"loaders"}, exclude_defaults=True),
        # A function of `input` is no reason to run again: the path of a config does not make the report out of date.
        commands=lambda w, input: ARGUMENTS.report(private.given_configfiles(workflow), private.given_keys(workflow)),
    shell:
        "autoseg report --pipeline {params.pipeline:q} {params.commands} --results {params.results:q} --out {output:q} 2> {log:q}"
