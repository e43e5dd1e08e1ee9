"""Times of trials: written beside the scores, needed by nothing but tables."""

from __future__ import annotations

from autoseg.files import read_json
from autoseg.search.folder import Folder
from autoseg.search.runner import run_chunk
from autoseg.search.settings import Search
from autoseg.search.steps import ask
from autoseg.search.times import search_time, write_time
from autoseg.training.trial import ProxyTask
from tests.small_task import small_task


def test_a_chunk_writes_down_what_each_trial_took_and_does_without(data, tmp_path):
    search, files = Search(metric="mIoU", steps=1, trials_per_step=2), Folder(tmp_path)
    files.write(ask(search, []))
    proxy = ProxyTask(small_task(data, iterations=1))
    run_chunk(tmp_path, 1, proxy)
    found = search_time(tmp_path)
    assert (found.trials, found.untimed, found.devices) == (2, 0, ("cpu",))
    assert 0 < found.hours < 0.1
    assert read_json(tmp_path / "step-001/time-0.json")["schema"] == "autoseg/time/1"
    scores = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/trial-*.json")}
    (tmp_path / "step-001/time-0.json").unlink()
    run_chunk(tmp_path, 1, proxy)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*/trial-*.json")} == scores
    assert search_time(tmp_path).untimed == 1
    assert len(files.scores(1)) == 2


def test_a_broken_time_is_a_trial_without_one(tmp_path):
    """No table and no report fails for it; they say which search has no hours."""
    write_time(tmp_path / "step-001", 0, 1.0, "cpu")
    (tmp_path / "step-001/trial-0.json").write_text("{}")
    assert search_time(tmp_path).untimed == 0
    (tmp_path / "step-001/time-0.json").write_text('{"number": 0}')
    assert (search_time(tmp_path).trials, search_time(tmp_path).untimed) == (1, 1)
