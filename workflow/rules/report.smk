# Tables and the report, from scores.json and the searches' files alone: no torch.


def table_scores(w):
    """Return the scores behind a table."""
    table = P.tables[w.table]
    names = [
        run
        for run, (dataset, retraining, loss, seed) in P.runs().items()
        if (dataset, retraining) == (table.dataset, table.retraining)
        and seed in table.seeds
        and loss in [row.loss for row in table.losses()]
    ]
    return [f"{OUT}/runs/{run}/scores.json" for run in names]


rule table:
    input:
        table_scores,
    output:
        md=f"{OUT}/tables/{{table}}.md",
        csv=f"{OUT}/tables/{{table}}.csv",
        html=f"{OUT}/tables/{{table}}.html",
    params:
        table=lambda w: to_json(P.tables[w.table].model_dump()),
        stem=lambda w, output: output.md.removesuffix(".md"),
    log:
        f"{OUT}/logs/tables/{{table}}.log",
    benchmark:
        f"{OUT}/logs/tables/{{table}}.tsv"
    conda:
        ENV
    localrule: True
    shell:
        "autoseg table {input:q} --table {params.table:q} --out {params.stem:q} 2> {log:q}"


rule make_report:
    input:
        tables=expand("{out}/tables/{table}.html", out=OUT, table=P.tables),
        surrogates=expand("{out}/searches/{search}/surrogate.json", out=OUT, search=P.searches),
    output:
        f"{OUT}/report.html",
    params:
        title=P.name,
        searches=[f"{OUT}/searches/{search}" for search in P.searches],
        config=to_json(P.model_dump(mode="json")),
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/logs/report.tsv"
    conda:
        ENV
    localrule: True
    shell:
        "autoseg report --title {params.title:q} --tables {input.tables:q} --searches {params.searches:q} "
        "--config {params.config:q} --out {output:q} 2> {log:q}"
