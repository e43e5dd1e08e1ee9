"""The paper's numbers, and tables in the paper's layout with them beside ours."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from autoseg.cli import main
from autoseg.errors import InputError
from autoseg.files import parse
from autoseg.metrics.formula import METRICS
from autoseg.pipeline.expansion import load_pipeline
from autoseg.pipeline.outputs import SCORE_TABLES, Row, Run, Table
from autoseg.report import definitions
from autoseg.report.formats import comma_separated, hypertext, latex, markdown
from autoseg.report.published import PUBLISHED_TABLES, published_metrics, published_table
from autoseg.report.score_files import ReadScores, read_scores
from autoseg.report.tables import Cell, fill, paper_table, targets, with_targets
from autoseg.search.times import search_time, write_time
from tests.pipeline_runs import content
from tests.small_results import scores

SIZES = {"main": (14, 12), "datasets": (4, 12), "networks": (4, 12), "constraints": (4, 1), "proxies": (4, 1)}
SIZES["linear"] = (14, 6)


# ------------------------------------------------------------------------------------------------ the paper's numbers


@pytest.mark.parametrize("name", SCORE_TABLES)
def test_a_published_table_is_whole(name):
    table = published_table(name)
    rows, columns = SIZES[name]
    assert len(table.rows) == rows
    for row in table.rows:
        cells = [cell for block in row.scores for cell in block]
        assert len(cells) == columns
        for cell in cells:
            assert cell.text == "Fail" or re.fullmatch(r"\d{1,2}\.\d\d", cell.text)
            assert cell.value is None or 0 <= cell.value <= 100
    assert all(metric in METRICS for block in table.columns for metric in block.metrics)
    labels = [row.label for row in table.rows]
    assert all(note.row in labels for note in table.notes if note.row)
    assert table.number == PUBLISHED_TABLES.index(name) + 1


@pytest.mark.parametrize(
    ("table", "row", "block", "metric", "text", "bold", "underlined"),
    [
        ("main", "Cross Entropy", "PASCAL VOC", "gAcc", "95.17", False, True),
        ("main", "DPCE", "PASCAL VOC", "gAcc", "95.45", True, False),  # against the caption's own rule
        ("main", "Searched BIoU", "PASCAL VOC", "mAcc", "81.28", False, False),  # swapped in print
        ("main", "Searched BF1", "PASCAL VOC", "BF1", "74.83", True, True),
        ("main", "Searched mIoU + BF1", "Cityscapes", "gAcc", "96.23", True, False),
        ("main", "DiceLoss", "PASCAL VOC", "mIoU", "77.78", False, False),
        ("datasets", "Searched BF1", "VOC to Cityscapes", "FWIoU", "3.20", False, False),
        ("networks", "Searched BF1", "R101-DeepLabv3+", "BF1", "73.54", True, True),
        ("constraints", "neither constraint", "", "mIoU", "Fail", False, False),
        ("proxies", "default", "", "mIoU", "80.97", False, False),
        ("linear", "Searched BIoU", "", "FWIoU", "70.50", False, False),
        ("linear", "Searched mIoU", "", "mIoU", "80.94", True, True),
    ],
)
def test_numbers_and_marks_are_as_printed(table, row, block, metric, text, bold, underlined):
    cell = published_table(table).cell(row, block, metric)
    assert (cell.text, cell.bold, cell.underlined) == (text, bold, underlined)


def test_every_mark_is_counted():
    marks = {
        name: [
            sum(getattr(cell, kind) for row in published_table(name).rows for block in row.scores for cell in block)
            for kind in ("bold", "underlined")
        ]
        for name in SCORE_TABLES
    }
    assert marks == {
        "main": [38, 34],
        "datasets": [15, 8],
        "networks": [12, 12],
        "constraints": [0, 0],
        "proxies": [0, 0],
        "linear": [21, 17],
    }


def test_slips_are_noted_with_what_the_release_logged():
    swapped = next(note for note in published_table("main").notes if note.row == "Searched BIoU")
    assert swapped.logged == {"mAcc": 62.64, "gAcc": 81.28}
    assert "80.97" in next(note.text for note in published_table("constraints").notes if note.row == "both constraints")
    assert [row.hours for row in published_table("proxies").rows] == [33.0, 17.1, 13.3, 8.5]


def test_the_table_of_metrics_defines_the_six():
    rows = published_metrics().rows
    assert sorted(row.metric for row in rows) == sorted(METRICS)
    assert [row.mark for row in rows] == ["†", "†", "†", "†", "*", "*"]


def test_the_paper_config_finds_every_number_of_the_paper():
    """Row by row and column by column, nothing that the paper prints is left without its place."""
    pipeline = load_pipeline(content("paper"), "paper.yaml")
    for name in SCORE_TABLES:
        table = pipeline.tables[name]
        assert table.paper == name
        filled = fill(with_targets(table, {s: pipeline.search(s).metric for s in pipeline.searches}), ReadScores())
        rows = [row for row in filled.rows if not row.paper_says]
        shown = [cell.paper.text for row in rows for cell in row.cells]
        assert shown == [cell.text for row in published_table(name).rows for block in row.scores for cell in block]
        assert [row.paper_hours for row in rows] == [row.hours for row in published_table(name).rows]


def test_our_targets_are_the_ones_that_the_paper_underlines():
    """By rule from the loss alone, for every row of the paper's main table."""
    pipeline = load_pipeline(content("paper"), "paper.yaml")
    table = with_targets(pipeline.tables["main"], {s: pipeline.search(s).metric for s in pipeline.searches})
    printed = published_table("main")
    for row in table.rows[len(printed.rows) :]:  # beside the paper's rows those of which it has words alone
        assert printed.words(row.label)
    for row, published in zip(table.rows, printed.rows, strict=False):
        underlined = {m for m, cell in zip(METRICS, published.scores[0], strict=True) if cell.underlined}
        assert set(targets(row)) == underlined, row.label


# ------------------------------------------------------------------------------------------------------------- tables


def write(folder: Path, *contents: dict) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(contents))]
    for path, one in zip(paths, contents, strict=True):
        path.write_text(json.dumps(one))
    return paths


def read(table: Table, paths: list[Path], **options) -> ReadScores:
    return read_scores(table.runs, paths, metrics=table.metrics, **options)


def cells(filled) -> dict:
    return {row.label: dict(zip(filled.metrics, row.cells, strict=False)) for row in filled.rows}


def test_a_table_has_means_spreads_targets_and_what_is_near_the_best(tmp_path):
    table = Table(dataset="d", retraining="r", rows=["ce", "naive:mIoU", "dice"], seeds=[0, 1])
    ce, naive = (Run("d", "r", loss, 0) for loss in ("ce", "naive:mIoU"))
    contents = [scores(ce, 50.0), scores(ce._replace(seed=1), 51.0), scores(naive, 40.0, scores={"mIoU": 50.21})]
    filled = fill(table, read(table, write(tmp_path, *contents)), command="make it")
    found = cells(filled)
    assert found["ce"]["mIoU"].text == "50.50 ± 0.71"
    assert found["ce"]["gAcc"].underlined
    assert found["naive:mIoU"]["mIoU"].bold  # 0.29 below
    assert found["naive:mIoU"]["mIoU"].underlined
    assert not found["naive:mIoU"]["FWIoU"].bold
    assert found["dice"]["mIoU"].text == ""
    assert [found[loss]["mIoU"].seeds for loss in ("ce", "naive:mIoU", "dice")] == [2, 1, 0]
    assert [sum(f" {loss};" in text for text in filled.caption) for loss in ("ce", "naive:mIoU", "dice")] == [0, 1, 1]
    assert sum("`make it`" in text for text in filled.caption) == 2  # fills what is empty, adds the seeds


@pytest.mark.parametrize(("value", "bold"), [(80.95, True), (80.94, False)])
def test_bold_is_less_than_0_3_below_the_best_to_the_printed_digit(tmp_path, value, bold):
    table = Table(dataset="d", retraining="r", rows=["ce", "dice"])
    runs = table.runs
    found = read(table, write(tmp_path, scores(runs[0], 81.24), scores(runs[1], value)))
    assert cells(fill(table, found))["dice"]["mIoU"].bold is bold


def test_every_block_of_columns_has_its_own_best(tmp_path):
    blocks = [{"dataset": name, "retraining": "r", "label": name} for name in ("a", "b")]
    table = Table(columns=blocks, rows=["ce", "dice"], metrics=["mIoU"])
    values = {("a", "ce"): 90, ("a", "dice"): 80, ("b", "ce"): 10, ("b", "dice"): 20}
    found = read(table, write(tmp_path, *(scores(r, values[r.dataset, r.loss]) for r in table.runs)))
    rows = fill(table, found).rows
    assert [[cell.bold for cell in row.cells] for row in rows] == [[True, False], [False, True]]


def test_targets_of_searched_losses_come_from_their_searches():
    table = Table(dataset="d", retraining="r", rows=["searched:mine + ce", "searched:mine", "dice"])
    rows = with_targets(table, {"mine": "BF1"}).rows
    assert [targets(row) for row in rows] == [["BF1", "gAcc"], ["BF1"], []]
    assert targets(Row(loss="published:mIoU-paper + naive:BF1")) == ["mIoU", "BF1"]


def beside_paper(tmp_path, **changes):
    table = Table(
        title="Losses & more",
        paper="main",
        columns=[{"label": "PASCAL VOC", "dataset": "voc", "retraining": "r101"}],
        rows=[{"loss": "ce", "label": "Cross Entropy"}, {"loss": "searched:BIoU", "label": "Searched BIoU"}, "dice"],
        **changes,
    )
    run = table.runs[0]
    return fill(table, read(table, write(tmp_path, scores(run, 78.0))))


def test_the_papers_number_and_the_difference_stand_below_ours(tmp_path):
    filled = beside_paper(tmp_path)
    cell = cells(filled)["Cross Entropy"]["mIoU"]
    assert (cell.text, cell.paper.text, cell.difference_text) == ("78.00", "78.69", "−0.69")
    swapped = cells(filled)["Searched BIoU"]["mAcc"]
    assert "swapped" in filled.notes[swapped.notes[0] - 1]
    assert "mAcc 62.64, gAcc 81.28" in filled.notes[swapped.notes[0] - 1]
    assert cells(filled)["dice"]["mIoU"].paper is None
    lines = markdown(filled).splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("| Cross Entropy"))
    assert lines[at + 1].startswith("| _paper_ | 78.69 |")
    assert lines[at + 2].startswith("| _difference_ | −0.69 |")


def test_am_lfs_stands_beside_what_the_paper_says_of_it():
    pipeline = load_pipeline(content("paper"), "paper.yaml")
    filled = fill(pipeline.tables["main"], ReadScores())
    lines = markdown(filled).splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("| AM-LFS"))
    assert lines[at + 1].startswith("| _paper: no reasonable result_ |")
    assert lines[at + 2] == ""
    assert "convergence issues" in filled.notes[-1]
    assert r"\emph{paper: no reasonable result}" in latex(filled)
    assert "<span class='paper'>no reasonable result</span>" in hypertext(filled)
    (row,) = [row for row in csv.DictReader(io.StringIO(comma_separated(filled))) if row["label"] == "AM-LFS"]
    assert row["PASCAL VOC mIoU paper"] == "no reasonable result"
    assert "AM-LFS" not in [row.label for row in paper_table("main").rows]  # as printed


@pytest.mark.parametrize(("ours", "text"), [(78.686, "0.00"), (78.694, "0.00"), (78.684, "−0.01"), (79.126, "+0.44")])
def test_the_difference_is_that_of_the_printed_numbers(ours, text):
    paper = published_table("main").cell("Cross Entropy", "PASCAL VOC", "mIoU")
    cell = Cell(mean=ours, paper=paper)
    assert cell.difference_text == text
    assert float(cell.text) - paper.value == pytest.approx(float(text.replace("−", "-")))


def test_markdown_has_as_many_cells_in_every_row(tmp_path):
    lines = [line for line in markdown(beside_paper(tmp_path)).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert re.fullmatch(r"\|( -+:? \|)+", lines[1])


def test_csv_has_full_digits_and_the_papers_as_printed(tmp_path):
    rows = list(csv.DictReader(io.StringIO(comma_separated(beside_paper(tmp_path)))))
    assert rows[0]["PASCAL VOC mIoU"] == "78.0"
    assert rows[0]["PASCAL VOC BF1 paper"] == "65.30"
    assert float(rows[0]["PASCAL VOC mIoU difference"]) == pytest.approx(-0.69)
    assert rows[2]["PASCAL VOC mIoU paper"] == rows[2]["PASCAL VOC mIoU"] == ""


class Cells(HTMLParser):
    """Counts the columns of every row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def handle_starttag(self, tag, attributes):
        if tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += int(dict(attributes).get("colspan", 1))


@pytest.mark.parametrize("name", SCORE_TABLES)
def test_html_is_rectangular_and_self_contained(name, tmp_path):
    pipeline = load_pipeline(content("paper"), "paper.yaml")
    text = hypertext(fill(pipeline.tables[name], ReadScores()))
    counter = Cells()
    counter.feed(text)
    assert len(set(counter.rows)) == 1
    assert "http://" not in text
    assert "https://" not in text


def balanced(tex: str) -> bool:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", tex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("name", SCORE_TABLES)
def test_latex_compiles_or_at_least_is_well_formed(name, tmp_path):
    pipeline = load_pipeline(content("paper"), "paper.yaml")
    for number, filled in enumerate((fill(pipeline.tables[name], ReadScores()), paper_table(name))):
        tex = latex(filled)
        assert balanced(tex)
        body = tex.split("\\midrule", 1)[1].split("\\bottomrule")[0]
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {
            len(filled.rows[0].cells) + len(filled.about or "1") - 1 + filled.hours
        }
        compiles(tex, tmp_path / f"{number}.tex")


def test_latex_of_the_metrics_compiles_or_at_least_is_well_formed(tmp_path):
    tex = definitions.latex()
    assert balanced(tex)
    assert all(row.formula in tex for row in published_metrics().rows)
    compiles(tex, tmp_path / "metrics.tex")


def compiles(tex: str, path: Path) -> None:
    """Compile a table with the packages that its first line names, where a LaTeX is installed."""
    if shutil.which("pdflatex") is None:
        return
    packages = tex.splitlines()[0].removeprefix("% ")
    path.write_text(f"\\documentclass{{article}}\n{packages}\n\\begin{{document}}\n{tex}\\end{{document}}\n")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", path.name],
        cwd=path.parent,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def test_latex_escapes_what_users_write(tmp_path):
    table = Table(
        title="50 % of a_b & c # {d}", dataset="d", retraining="r", rows=[{"loss": "ce", "label": "x^2 ~ \\y"}]
    )
    tex = latex(fill(table, ReadScores()))
    assert "says ``8 hours'' of" in latex(paper_table("proxies"))
    assert r"50 \% of a\_b \& c \# \{d\}" in tex
    assert r"x\textasciicircum{}2 \textasciitilde{} \textbackslash{}y" in tex


# -------------------------------------------------------------------------------------- missing, broken, foreign files


def test_a_broken_or_foreign_file_is_named_and_skipped_or_with_strict_an_error(tmp_path):
    table = Table(dataset="d", retraining="r", rows=["ce", "dice"])
    good = table.runs[0]
    paths = write(
        tmp_path,
        scores(good, 70.0),
        {"schema": "autoseg/trial/1"},
        scores(Run("other", "r", "ce", 0)),
        {key: value for key, value in scores(good).items() if key != "loss"},
        scores(good, 10.0),
    )
    (tmp_path / "torn.json").write_text('{"schema": "autoseg/sco')
    paths += [tmp_path / "torn.json", tmp_path / "missing.json"]
    found = read(table, paths)
    assert list(found.problems) == paths[1:]
    assert all(problem.where.startswith(str(path)) for path, problem in found.problems.items())
    of_kind, foreign, incomplete, second, torn, missing = found.problems.values()
    assert of_kind.expected == "'autoseg/scores/1'"
    assert (foreign.expected, second.cure) == ("a run of the table", "give one of them")
    assert incomplete.where == f"{paths[3]}: loss"
    assert ("JSON" in torn.what, missing.what) == (True, "no such file")
    filled = fill(table, found)
    assert cells(filled)["ce"]["mIoU"].text == "70.00"
    assert sum(text.startswith("Skipped: ") for text in filled.caption) == 6
    for path in paths[1:]:
        with pytest.raises(InputError) as error:
            read(table, [paths[0], path], strict=True)
        assert error.value.where.startswith(str(path))


def test_the_verb_writes_four_files_and_strict_ends_in_a_sentence(tmp_path, capsys):
    table = Table(dataset="d", retraining="r", rows=["ce", "dice"])
    good, broken = write(tmp_path, scores(table.runs[0], 70.0), {"schema": "other"})
    arguments = ["table", str(good), str(broken), "--table", table.model_dump_json(), "--out", str(tmp_path / "t")]
    assert main(arguments) == 0
    assert str(broken) in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.glob("t.*")) == ["t.csv", "t.html", "t.md", "t.tex"]
    before = {path: path.read_bytes() for path in tmp_path.glob("t.*")}
    assert main(arguments) == 0
    assert {path: path.read_bytes() for path in tmp_path.glob("t.*")} == before
    assert main([*arguments, "--strict"]) == 2
    assert str(broken) in capsys.readouterr().err


def test_a_published_table_is_shown_by_the_verb(capsys):
    assert main(["table", "--published", "constraints"]) == 0
    shown = capsys.readouterr().out
    assert "| ✓ | ✗ | ✗ | Fail" in shown
    assert main(["table", "--published", "metrics"]) == 0
    assert "Boundary F1 Score" in capsys.readouterr().out
    assert main(["table", "--published", "mian"]) == 2
    assert "'main'" in capsys.readouterr().err


@pytest.mark.parametrize("name", PUBLISHED_TABLES)
def test_a_published_table_is_written_in_every_format(name, tmp_path):
    assert main(["table", "--published", name, "--out", str(tmp_path / name)]) == 0
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".html", ".md", ".tex"]
    counter = Cells()
    counter.feed((tmp_path / f"{name}.html").read_text())
    assert len(set(counter.rows)) == 1


def test_a_published_table_keeps_its_last_digits_and_its_notes(tmp_path):
    linear = list(csv.DictReader(io.StringIO(comma_separated(paper_table("linear")))))
    assert (linear[0]["BF1"], linear[8]["FWIoU"]) == ("65.30", "70.50")
    assert not any("seeds" in name for name in linear[0])
    assert ",Fail\n" in comma_separated(paper_table("constraints"))
    assert "| ✓ | ✗ | ✗ | Fail<sup>1</sup> |" in markdown(paper_table("constraints"))
    assert "Fail\\rlap{\\textsuperscript{1}}" in latex(paper_table("constraints"))
    assert "Fail<sup>1</sup>" in hypertext(paper_table("constraints"))


def test_score_files_and_a_table_of_a_config_do_not_go_together(tmp_path, capsys):
    assert main(["table", "a/scores.json", "--config", "demo.yaml", "--table", "main"]) == 2
    assert "--results" in capsys.readouterr().err


def test_a_config_with_an_unknown_table_of_the_paper_is_refused():
    with pytest.raises(InputError) as error:
        parse(Table, {"dataset": "d", "retraining": "r", "rows": ["ce"], "paper": "mian"}, "tables.main")
    assert error.value.where == "tables.main: paper"
    assert error.value.expected == f"one of {', '.join(sorted(SCORE_TABLES))}"


def test_tables_need_neither_torch_nor_optuna_nor_matplotlib(tmp_path):
    code = (
        "import sys, json; from autoseg.report.formats import hypertext; "
        "from autoseg.report.tables import paper_table; hypertext(paper_table('main')); "
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "matplotlib"} & set(json.loads(done.stdout))


# -------------------------------------------------------------------------------------------------------------- hours


def test_hours_are_the_sum_of_recorded_times_and_empty_where_one_is_missing(tmp_path):
    for search, count in (("whole", 3), ("torn", 2)):
        for number in range(3):
            step = tmp_path / search / ("rescore" if number == 2 else "step-001")
            step.mkdir(parents=True, exist_ok=True)
            (step / f"trial-{number}.json").write_text("{}")
            if number < count:
                write_time(step, number, 1800.0, "NVIDIA Tesla V100")
    assert search_time(tmp_path / "whole").hours == pytest.approx(1.5)
    assert search_time(tmp_path / "torn").untimed == 1
    (tmp_path / "torn/step-001/time-1.json").write_text('{"schema": "auto')
    assert search_time(tmp_path / "torn").untimed == 2
    rows = [{"loss": f"searched:{name}", "label": name, "about": ["R50"]} for name in ("whole", "torn")]
    table = Table(dataset="d", retraining="r", rows=rows, about=["Backbone"], hours=True, metrics=["mIoU"])
    filled = fill(table, ReadScores(), searches=tmp_path)
    assert [row.hours_text for row in filled.rows] == ["1.5", ""]
    assert any("torn" in text and "whole" not in text for text in filled.caption)
    assert "| Backbone | Hours | mIoU |" in markdown(filled)


def test_several_seeds_are_compared_pair_by_pair_in_every_format(tmp_path):
    table = Table(dataset="d", retraining="r", rows=["dice", "ce", "naive:mIoU"], seeds=[0, 1, 2], metrics=["mIoU"])
    values = {"ce": (50, 60, 70), "dice": (51, 61.2, 70.8), "naive:mIoU": (49, 61, 69.5)}
    found = read(table, write(tmp_path, *(scores(run, values[run.loss][run.seed]) for run in table.runs)))
    filled = fill(table, found)
    gain = cells(filled)["dice"]["mIoU"].gain
    # Student's t with two degrees of freedom: 4.303 standard errors, of 0.2 / sqrt(3).
    assert (gain.mean, gain.low, gain.high) == pytest.approx((1, 0.503, 1.497), abs=1e-3)
    assert (gain.better, gain.seeds, gain.verdict) == (3, 3, "better")
    assert cells(filled)["naive:mIoU"]["mIoU"].gain.verdict == "unsure"
    assert cells(filled)["ce"]["mIoU"].gain is None  # the others are compared with it
    for text in (markdown(filled), hypertext(filled), latex(filled).replace("$-$", "−")):
        assert "Differences from ce" in text
        assert "+1.00 [+0.50, +1.50], 3 of 3" in text
    header, row, *_ = comma_separated(filled).splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["mIoU gain seeds better"] == "3"
    other = fill(table.model_copy(update={"against": "dice"}), found)
    assert cells(other)["ce"]["mIoU"].gain.mean == pytest.approx(-1)
    single = Table(dataset="d", retraining="r", rows=["dice", "ce"], metrics=["mIoU"])
    assert "Differences" not in markdown(fill(single, found))


def test_a_table_is_compared_with_one_of_its_rows():
    with pytest.raises(InputError, match="unknown row 'dise'; did you mean 'dice'"):
        parse(Table, {"dataset": "d", "retraining": "r", "rows": ["ce", "dice"], "against": "dise"})
