# Tables, figures and the report, from scores.json and the searches' files alone: no torch, but for galleries.

from autoseg.paper.tables import with_targets

METRICS = {search: P.search(search).metric for search in P.searches}


rule table:
    input:
        lambda w: scores(table_runs(P.tables[w.table])),
    output:
        md=f"{OUT}/tables/{{table}}.md",
        csv=f"{OUT}/tables/{{table}}.csv",
        tex=f"{OUT}/tables/{{table}}.tex",
        html=f"{OUT}/tables/{{table}}.html",
    log:
        f"{OUT}/logs/tables/{{table}}.log",
    benchmark:
        f"{OUT}/logs/tables/{{table}}.tsv"
    localrule: True
    conda:
        ENV
    params:
        table=lambda w: to_json(with_targets(P.tables[w.table], METRICS).model_dump()),
        stem=lambda w, output: output.md.removesuffix(".md"),
    shell:
        "{AUTOSEG} table {input:q} --table {params.table:q} --searches {OUT}/searches --out {params.stem:q} 2> {log:q}"


rule make_report:
    input:
        tables=expand("{out}/tables/{table}.html", out=OUT, table=P.tables),
        surrogates=expand("{out}/searches/{search}/surrogate.json", out=OUT, search=P.searches),
    output:
        f"{OUT}/report.html",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/logs/report.tsv"
    localrule: True
    conda:
        ENV
    params:
        title=P.name,
        searches=[f"{OUT}/searches/{search}" for search in P.searches],
        # Without what changes no result: that should not make a report out of date.
        config=lambda w: to_json(P.model_dump(mode="json", exclude={"workers"})),
    shell:
        "{AUTOSEG} report --title {params.title:q} --tables {input.tables:q} --searches {params.searches:q} "
        "--config {params.config:q} --out {output:q} 2> {log:q}"
