# What happens around a run, on one machine or on a cluster: how it was started is noted, its processes are marked,
# a cluster that lacks what the jobs ask for is refused before the first job is submitted, and one that does not answer
# for a while is waited for.

from autoseg.pipeline import patience, resume, slurm

if workflow.is_main_process:
    resume.mark_processes(P.name)
elif not private.is_slurm_batch(sys.argv):
    slurm.pass_on_signals()


def need(job):
    """Return what a job asks of the cluster: the last attempt's time, and the first one's memory, as few need more."""
    gpus, minutes = private.resources(job, private.attempts(workflow), "gpu", "runtime")
    partition, account, memory = private.resources(job, 1, "slurm_partition", "slurm_account", "mem_mb")
    return slurm.Need(str(partition or ""), str(account or ""), gpus or 0, minutes or 0, memory or 0)


def check_cluster():
    """Refuse to start on a cluster that lacks what the jobs ask for."""
    status = private.slurm_status_command(workflow)
    if status is None:
        return
    needs = slurm.most(need(job) for job in private.jobs_to_run(workflow) if not job.is_local)
    if found := [problem for one in needs for problem in slurm.check(one, status)]:
        sys.exit("autoseg: " + " ".join(str(problem) for problem in dict.fromkeys(found)))
    import snakemake_executor_plugin_slurm

    patience.make_patient(snakemake_executor_plugin_slurm)
    for remark in slurm.check_folder(os.getcwd()):
        print(f"autoseg: {remark}", file=sys.stderr)


def note_start():
    """Note how this run is started, for `autoseg resume`."""
    resume.note_start(P.name, sys.argv[1:], private.slurm_run(workflow))
