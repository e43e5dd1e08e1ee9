# Searches: ask(t) -> trials(t, chunk) -> ask(t + 1) -> ... -> rescore -> select. The number of steps, trials and chunks
# is known beforehand, so the whole DAG is, too.

SEARCH = f"{OUT}/searches/{{search}}"


def chunk_files(search, step):
    """Return the files that say that all trials of a step are scored."""
    plan = P.search(search)
    # At the end the first mean, the best ones and the last one are trained themselves.
    trials = plan.rescore + 2 if step == "rescore" else settings_of(plan).trials_per_step
    folder = step if step == "rescore" else f"step-{step:03d}"
    count = P.chunks(search, trials)
    return [f"{OUT}/searches/{search}/{folder}/chunk-{k}-of-{count}.json" for k in range(count)]


def earlier(w):
    """Return what step `w.step` waits for."""
    return chunk_files(w.search, int(w.step) - 1) if int(w.step) > 1 else []


def all_steps(w):
    """Return what waits for a whole search."""
    return [path for t in range(1, total_steps(P.search(w.search)) + 1) for path in chunk_files(w.search, t)]


def chunk_task(w):
    """Return the arguments of a search's trainings."""
    plan = P.searches[w.search]
    proxy = P.proxies[plan.proxy]
    conventions = P.datasets[plan.dataset].conventions
    return task_arguments(plan.dataset, proxy.network, proxy.weights, P.proxy_training(w.search), conventions)


rule search_settings:
    output:
        f"{SEARCH}/search.json",
    params:
        settings=lambda w: to_json(P.search(w.search).model_dump()),
    log:
        f"{OUT}/logs/searches/{{search}}/settings.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/settings.tsv"
    conda:
        ENV
    localrule: True
    shell:
        "printf %s {params.settings:q} > {output:q} 2> {log:q}"


rule ask:
    input:
        f"{SEARCH}/search.json",
        earlier,
    output:
        f"{SEARCH}/step-{{step}}/proposals.json",
    params:
        folder=SEARCH,
        step=lambda w: int(w.step),
    log:
        f"{OUT}/logs/searches/{{search}}/ask-{{step}}.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/ask-{{step}}.tsv"
    conda:
        ENV
    localrule: True
    shell:
        "autoseg ask {params.folder:q} --step {params.step} 2> {log:q}"


rule trials:
    input:
        f"{SEARCH}/{{step}}/proposals.json",
        lambda w: f"{OUT}/data/{P.searches[w.search].dataset}/split.json",
    output:
        f"{SEARCH}/{{step}}/chunk-{{chunk}}-of-{{parts}}.json",
    wildcard_constraints:
        step=r"step-\d{3}|rescore",
        parts=r"\d+",
    params:
        folder=SEARCH,
        step=lambda w: w.step if w.step == "rescore" else int(w.step.removeprefix("step-")),
        task=chunk_task,
        workers=f"--set workers={P.workers}",
    log:
        f"{OUT}/logs/searches/{{search}}/trials-{{step}}-{{chunk}}-of-{{parts}}.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/trials-{{step}}-{{chunk}}-of-{{parts}}.tsv"
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=gpu(),
        runtime=lambda w, attempt: 240 * attempt,
        mem_mb=lambda w, attempt: 16000 * attempt,
    shell:
        "autoseg trials {params.folder:q} --step {params.step} --chunk {wildcards.chunk}/{wildcards.parts} "
        "--out {output:q} --quiet {params.task} {params.workers} 2> {log:q}"


rule rescore:
    input:
        f"{SEARCH}/search.json",
        all_steps,
    output:
        f"{SEARCH}/rescore/proposals.json",
    params:
        folder=SEARCH,
    log:
        f"{OUT}/logs/searches/{{search}}/rescore.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/rescore.tsv"
    conda:
        ENV
    localrule: True
    shell:
        "autoseg rescore {params.folder:q} 2> {log:q}"


rule select:
    input:
        f"{SEARCH}/search.json",
        all_steps,
        lambda w: chunk_files(w.search, "rescore") if P.search(w.search).rescore else [],
    output:
        f"{SEARCH}/surrogate.json",
    params:
        folder=SEARCH,
    log:
        f"{OUT}/logs/searches/{{search}}/select.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/select.tsv"
    conda:
        ENV
    localrule: True
    shell:
        "autoseg select {params.folder:q} --output {output:q} > {log:q} 2>&1"
