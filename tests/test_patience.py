"""The SLURM executor waits where SLURM does not answer: the plugin's own code, with commands that fail for a while."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from throttler import Throttler

from autoseg.pipeline import patience

plugin = pytest.importorskip("snakemake_executor_plugin_slurm")


@pytest.fixture
def executor(tmp_path, monkeypatch):
    """An executor as the plugin makes it, without its threads; its SLURM is scripts of the test's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script(tmp_path, "scontrol", "echo 'MinJobAge = 3600 sec'")  # else the plugin asks sacct
    monkeypatch.setattr(patience, "FIRST_PAUSE", 0.01)
    patience.make_patient(plugin)
    made = plugin.Executor.__new__(plugin.Executor)
    settings = SimpleNamespace(status_attempts=2, status_command="squeue", init_seconds_before_status_checks=40)
    settings.exclude_failed_nodes = "n3, n4"
    made.workflow = SimpleNamespace(executor_settings=settings)
    made.logger = logging.getLogger("patience")
    made.run_uuid = "run"
    made.status_rate_limiter = Throttler(rate_limit=100, period=1)
    made._status_query_failures = made._status_query_calls = 0
    made._status_query_total_seconds = made._status_query_max_seconds = 0.0
    made._status_query_min_seconds = None
    made._status_query_cycle_rows = []
    made._next_seconds_between_status_checks = 1
    made._main_event_loop = None
    reported: list[tuple[str, str]] = []
    made.print_job_error = lambda info, msg=None, **_: reported.append(("error", msg))
    made.handle_job_success = lambda job: reported.append(("success", ""))
    made.workflow.scheduler = SimpleNamespace(error_callback=lambda job: None, finish_callback=lambda job: None)
    made.reported = reported
    made.slurm_logdir = tmp_path
    made._failed_nodes = {"n3", "n4"}
    made.submissions = []
    script(tmp_path, "squeue", "true")  # it knows no job
    return made


def script(folder: Path, name: str, text: str) -> None:
    """Write a command that stands before SLURM's own."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def check(executor, *numbers: str) -> list[str]:
    """Return the jobs that are still active after one look."""

    async def look() -> list[str]:
        jobs = [SubmittedJobInfo(SimpleNamespace(name=number), external_jobid=number, aux={}) for number in numbers]
        return [job.external_jobid async for job in executor.check_active_jobs(jobs)]

    return asyncio.run(look())


def test_no_job_is_forgotten_while_squeue_fails(executor, tmp_path, caplog):
    script(tmp_path, "squeue", "exit 1")
    assert check(executor, "7", "8") == ["7", "8"]
    assert check(executor, "7", "8") == ["7", "8"]
    assert len(caplog.records) == 1  # it is said once
    script(tmp_path, "squeue", "echo '7|RUNNING'; echo '8|PENDING'")
    assert check(executor, "7", "8") == ["7", "8"]
    assert "answers again" in caplog.records[-1].message


def test_a_failure_inside_the_check_loses_no_job(executor, tmp_path, monkeypatch):
    script(tmp_path, "squeue", "echo '7|RUNNING'")
    monkeypatch.setattr(executor, "get_status_command", lambda: 1 / 0)
    assert check(executor, "7") == ["7"]


def test_a_job_that_has_ended_is_reported_once_and_not_kept(executor, tmp_path):
    script(tmp_path, "squeue", "echo '7|FAILED'; echo '8|RUNNING'")
    assert check(executor, "7", "8") == ["8"]
    assert [kind for kind, _ in executor.reported] == ["error"]


def test_what_snakemake_raises_is_not_swallowed(executor, tmp_path):
    script(tmp_path, "squeue", "echo '7|FAILED'")
    executor.workflow.scheduler.error_callback = lambda job: 1 / 0
    with pytest.raises(ZeroDivisionError):
        check(executor, "7")


def test_a_job_that_slurm_has_forgotten_is_lost_after_a_while(executor, tmp_path):
    script(tmp_path, "squeue", "echo '8|RUNNING'")
    assert check(executor, "7", "8") == ["7", "8"]  # it may not be known yet
    executor.patience.forgotten = 0.0
    assert check(executor, "7", "8") == ["8"]
    assert "has not known the job '7'" in executor.reported[0][1]


JOB = SimpleNamespace(name="trials", wildcards=["mIoU", "001"])


def submit(executor, refusals: list[str]) -> int:
    """Let a job be submitted that is refused so often; return how often it was tried."""
    tries = []
    executor.report_job_submission = executor.submissions.append

    def run_job(self, job):
        tries.append(job)
        if refusals:
            self._report_job_error_threadsafe(SubmittedJobInfo(job), refusals.pop(0))

    patience._submit_until_taken(run_job, plugin.get_job_wildcards)(executor, JOB)
    return len(tries)


def test_a_job_that_sbatch_refuses_is_submitted_again(executor):
    assert submit(executor, ["SLURM sbatch failed: Unable to contact slurm controller", "Socket timed out"]) == 3
    assert executor.reported == []


def test_a_job_that_slurm_took_although_sbatch_failed_is_not_submitted_again(executor, tmp_path):
    """Job 7 is an earlier attempt, job 8 another job's, job 9 the one whose answer came too late."""
    jobs = {"7": "trials_wildcards_mIoU_001", "8": "trials_wildcards_mAcc_001", "9": "trials_wildcards_mIoU_001"}
    script(tmp_path, "squeue", "; ".join(f"echo '{number}|rule_{comment}'" for number, comment in jobs.items()))
    executor.report_job_submission = lambda info: None
    executor._report_job_submission_threadsafe(SubmittedJobInfo(JOB, external_jobid="7"))
    assert submit(executor, ["SLURM sbatch failed: Socket timed out on send/recv operation"] * 2) == 1
    (taken,) = executor.submissions
    assert (taken.job, taken.external_jobid) == (JOB, "9")
    assert taken.aux == {"slurm_logfile": tmp_path / "rule_trials/mIoU_001/9.log"}
    assert executor.reported == []


def test_a_job_is_not_submitted_again_before_slurm_says_that_it_has_it_not(executor, tmp_path):
    asked = tmp_path / "asked"
    script(tmp_path, "squeue", f'echo >> "{asked}"; test $(wc -l < "{asked}") -gt 3')
    assert submit(executor, ["Socket timed out"]) == 2
    assert len(asked.read_text().splitlines()) == 4


def test_a_job_that_can_never_run_fails_at_once(executor):
    assert submit(executor, ["SLURM sbatch failed: Invalid account or account/partition combination"]) == 1
    assert [kind for kind, _ in executor.reported] == ["error"]


CALL = "'.\n    sbatch call:\n        sbatch --chdir=/home/invalid/unrecognized option\n    sbatch script:\n#!/bin/sh"


def test_words_in_the_call_of_sbatch_are_no_reason_to_give_up(executor, caplog):
    limit = "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Job violates accounting/QOS policy"
    assert submit(executor, [f"SLURM sbatch failed. The error message was '{limit}{CALL}"]) == 2
    assert executor.reported == []
    assert "Job violates accounting/QOS policy'. The job of rule trials is tried again" in caplog.text


@pytest.mark.parametrize("what", ["Invalid authentication credential", "Invalid user id"])
def test_a_name_service_or_munge_that_is_away_is_waited_for(executor, what):
    assert submit(executor, [f"SLURM sbatch failed. The error message was 'sbatch: error: {what}{CALL}"]) == 2


def test_nodes_that_failed_are_used_again_where_no_other_is_left(executor):
    refusal = "SLURM sbatch failed: Requested node configuration is not available"
    executor._failed_nodes.update(("n1", "n2"))
    assert submit(executor, [refusal]) == 2
    assert (executor._failed_nodes, executor.reported) == ({"n3", "n4"}, [])  # the user's own choice stays
    assert submit(executor, [refusal] * 2) == 1  # now it is the job itself that asks for too much
    assert [kind for kind, _ in executor.reported] == ["error"]


def test_a_node_that_failed_is_used_again_after_a_while(executor, monkeypatch):
    executor._failed_nodes.add("n1")
    submit(executor, [])
    assert executor._failed_nodes == {"n1", "n3", "n4"}
    monkeypatch.setattr(patience, "EXCLUDED", 0.0)
    submit(executor, [])
    assert executor._failed_nodes == {"n3", "n4"}


def test_a_refusal_for_a_day_is_a_failure(executor, monkeypatch):
    monkeypatch.setattr(patience, "GIVE_UP", 0.03)
    assert submit(executor, ["no"] * 10) == 3  # after pauses of 0.01 and 0.02 s
    assert [kind for kind, _ in executor.reported] == ["error"]


def test_ctrl_c_ends_the_waiting(executor, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_PAUSE", 60.0)
    monkeypatch.setattr(plugin, "cancel_slurm_jobs", lambda *_: None)
    thread = threading.Thread(target=submit, args=(executor, ["no"] * 10))
    thread.start()
    executor._submitted_job_clusters = set()
    executor.cancel_jobs([])
    thread.join(10)
    assert not thread.is_alive()


def test_the_plugin_reports_a_refused_submission_as_relied_on():
    source = Path(plugin.__file__).read_text()
    assert source.count("self._report_job_error_threadsafe(") >= 2  # in run_job, for sbatch and for all else
    assert "self._job_submission_executor.submit(self.run_job, job)" in source
    assert "await query_job_status(" in source
    assert "failed_nodes=self._failed_nodes" in source
    assert 'comment_str = f"rule_{job.name}_wildcards_{wildcard_str}"' in source
    assert 'slurm_logfile = self.slurm_logdir / group_or_rule / wildcard_str / "%j.log"' in source
