# What happens around a run, on one machine or on a cluster: how it was started is noted, its processes are marked,
# a cluster or machine that lacks what the jobs ask for is refused before the first job, and a cluster that does not
# answer for a while is waited for.

from autoseg import gpus
from autoseg.pipeline import patience, resume, slurm

# Of this machine, for jobs that run here.
GPUS = gpus.visible() if GPU and workflow.is_main_process and private.is_local(workflow) else []

if workflow.is_main_process:
    resume.mark_processes(P.name)
    if GPUS:  # no more jobs at once than they have room for; which job gets which, `autoseg.gpus` says
        private.limit(workflow, "gpu_shares", len(GPUS) * P.trials_per_gpu)
else:
    gpus.leave_to_cluster()
    if not private.is_slurm_batch(sys.argv):
        slurm.pass_on_signals()


def need(job):
    """Return what a job asks of the cluster: the last attempt's time, and the first one's memory, as few need more."""
    gpus, minutes = private.resources(job, private.attempts(workflow), "gpu", "runtime")
    partition, account, memory = private.resources(job, 1, "slurm_partition", "slurm_account", "mem_mb")
    return slurm.Need(str(partition or ""), str(account or ""), gpus or 0, minutes or 0, memory or 0)


def check_cluster():
    """Refuse to start on a cluster, or a machine, that lacks what the jobs ask for."""
    status = private.slurm_status_command(workflow)
    if status is None:
        runs = [P.runs[job.wildcards.run] for job in private.jobs_to_run(workflow, "train")]
        for name in {run.retraining for run in runs} if GPUS else ():
            if P.retrainings[name].processes > len(GPUS):
                found = f"{P.retrainings[name].processes} GPUs, and {len(GPUS)} can be used here"
                sys.exit(f"autoseg: retrainings.{name}: processes: asks for {found} ({', '.join(GPUS)}).")
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
