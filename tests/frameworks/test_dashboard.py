"""A search's journal as optuna-dashboard's own server gives it to the page."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from toy_trainings import train

import autoseg

pytestmark = pytest.mark.frameworks("optuna-dashboard")


def test_the_dashboard_shows_every_metric_and_the_mean_of_each_step(tmp_path):
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna_dashboard import wsgi

    found = autoseg.search(train, "mIoU", steps=2, trials_per_step=3, out=tmp_path, progress=False)
    app = wsgi(JournalStorage(JournalFileBackend(str(tmp_path / "journal.log"))))

    def get(path: str, query: str = "") -> Any:
        request = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": query, "SERVER_NAME": "here"}
        request |= {
            "SERVER_PORT": "80",
            "wsgi.input": io.BytesIO(),
            "wsgi.errors": sys.stderr,
            "wsgi.url_scheme": "http",
        }
        return json.loads(b"".join(app(request, lambda *_: None)))

    (summary,) = get("/api/studies")["study_summaries"]
    study = get(f"/api/studies/{summary['study_id']}", "after=0")
    assert study["objective_names"] == ["mIoU"]
    columns = {column["key"] for column in study["union_user_attrs"] if column["sortable"]}
    assert {"mIoU", "BF1", "step", "step's mean score"} <= columns
    for shown, trial in zip(study["trials"], found.trials, strict=True):
        own = {pair["key"]: json.loads(pair["value"]) for pair in shown["user_attrs"] if pair["key"] != "diverged"}
        step = [t.score for t in found.trials if t.step == trial.step]
        assert {name: own[name] for name in trial.scores} == trial.scores
        assert own["step's mean score"] == pytest.approx(sum(step) / len(step))
    steps = {pair["key"]: json.loads(pair["value"]) for pair in study["user_attrs"]}
    assert set(steps) == {"step 1", "step 2"}
    assert "AND.u1" in steps["step 2"]["mean"]
