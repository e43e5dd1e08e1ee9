# Searches: ask(t) -> trials(t, chunk) -> ask(t + 1) -> ... -> rescore -> select. The number of steps, trials and chunks
# is known beforehand, so the whole DAG is, too. A search's settings, search.json, are written when a run starts: as an
# output, a change of one setting would run every step again, and Snakemake does not look at the parameters of a job
# behind an `ancient` input that is made anew.
# `exec`: see train.smk.

SEARCH = f"{OUT}/searches/{{search}}"


rule ask:
    input:
        earlier,
    output:
        f"{SEARCH}/step-{{step}}/proposals.json",
    log:
        f"{OUT}/logs/searches/{{search}}/ask-{{step}}.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/ask-{{step}}.tsv"
    localrule: True
    conda:
        ENV
    params:
        folder=search_folder,
        # Only what changes proposals: another number of steps, say, leaves those that are done as they are.
        settings=lambda w: proposing(w.search),
    shell:
        "autoseg ask {params.folder} --step {wildcards.step} 2> {log:q}"


rule trials:
    input:
        f"{SEARCH}/{{step}}/proposals.json",
        known(lambda w: trial_data(w.search)),
    output:
        f"{SEARCH}/{{step}}/chunk-{{chunk}}-of-{{parts}}.json",
    log:
        f"{OUT}/logs/searches/{{search}}/trials-{{step}}-{{chunk}}-of-{{parts}}.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/trials-{{step}}-{{chunk}}-of-{{parts}}.tsv"
    wildcard_constraints:
        step=r"step-\d{3}|rescore",
    conda:
        ENV
    threads: P.threads
    resources:
        gpu=gpu(),
        cpus_per_task=P.threads + P.workers,
        runtime=known(lambda w, attempt: 240 * attempt),
        mem_mb=known(lambda w, attempt: 16000 * attempt),
    params:
        # One function for all, and its arguments noted: planning thousands of these jobs takes a tenth less.
        search=known(lambda w: trial_task(w.search)),
        # With `input` as an argument it is no reason to run again: it changes no result.
        machine=known(lambda w, input: MACHINE),
        version=TRAINING_VERSION,
    shell:
        "exec autoseg trials {params.search[folder]} --step {wildcards.step} --chunk {wildcards.chunk}/{wildcards.parts} "
        "--out {output:q} --quiet {params.search[task]} {params.machine} 2> {log:q}"


rule rescore:
    input:
        last_step,
    output:
        f"{SEARCH}/rescore/proposals.json",
    log:
        f"{OUT}/logs/searches/{{search}}/rescore.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/rescore.tsv"
    localrule: True
    conda:
        ENV
    params:
        folder=search_folder,
        settings=lambda w: to_json(P.search(w.search).model_dump()),
        version=SEARCH_VERSION,
    shell:
        "autoseg rescore {params.folder} 2> {log:q}"


rule select:
    input:
        last_step,
        lambda w: chunk_files(w.search, "rescore") if P.search(w.search).rescore else [],
    output:
        f"{SEARCH}/surrogate.json",
    log:
        f"{OUT}/logs/searches/{{search}}/select.log",
    benchmark:
        f"{OUT}/logs/searches/{{search}}/select.tsv"
    localrule: True
    conda:
        ENV
    params:
        folder=search_folder,
        settings=lambda w: to_json(P.search(w.search).model_dump()),
        version=SEARCH_VERSION,
    shell:
        "autoseg select {params.folder} --output {output:q} > {log:q} 2>&1"
