# Every target sets up what it needs in .venv (test-frameworks: in .venv-frameworks); nothing else on the machine is
# touched, but by test-page, which as root installs Chromium, and by test-slurm, test-long, bench-slurm and bench-polls:
# as root, they install SLURM, and put its configuration in place for as long as they run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FRAMEWORKS := .venv-frameworks
# One intra-op thread: the suite runs one test process per core, and results must not depend on the machine's cores.
export OMP_NUM_THREADS ?= 1
export NO_ALBUMENTATIONS_UPDATE := 1

# Every target that has a line of help.
.PHONY: $(shell sed -nE 's/^([a-z-]+):.*##.*/\1/p' $(MAKEFILE_LIST))

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 18

venv: $(VENV)/.installed  ## install autoseg and everything it can use, pinned by envs/constraints.txt

$(VENV)/.installed: pyproject.toml envs/constraints.txt envs/mend_torchvision.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c envs/constraints.txt -e '.[bench]'
	$(BIN)/python envs/mend_torchvision.py
	touch $@

$(FRAMEWORKS)/.installed: pyproject.toml envs/constraints.txt envs/frameworks.txt envs/mend_torchvision.py
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install -q --disable-pip-version-check -c envs/constraints.txt -r envs/frameworks.txt -e '.[bench]'
	$(FRAMEWORKS)/bin/python envs/mend_torchvision.py
	touch $@

demo: venv  ## the whole pipeline on synthetic scenes, in minutes: results/demo/report.html
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --cores all --rerun-incomplete --quiet rules host

resume: venv  ## bring the run that was started last back, after a kill or a power cut
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/autoseg resume

test: venv  ## the test suite (fast, deterministic)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not long and not slurm and not page and not frameworks'

test-slurm: venv  ## the pipeline on a real two-node SLURM on this machine, installed and started for it (needs root and Debian)
	$(BIN)/python tests/slurm/cluster.py run $(BIN)/python -m pytest -m 'slurm and not long'

test-page: venv  ## the report in Chromium (installed where root may): quiet, fits every width, its tables sort
	$(BIN)/python tests/page/browser.py
	$(BIN)/python -m pytest -m page -rs tests/page

test-frameworks: $(FRAMEWORKS)/.installed  ## the examples inside Lightning, transformers, MONAI, nnU-Net, mmseg, torchmetrics, smp: the real packages
	AUTOSEG_FRAMEWORKS=required $(FRAMEWORKS)/bin/python -m pytest -m frameworks -rs tests/frameworks

test-long: venv test-frameworks  ## what takes minutes: storms of kills, long comparisons, the demo on a SLURM cluster; and test-frameworks
	$(BIN)/python tests/slurm/cluster.py run-with-accounts $(BIN)/python -m pytest -m long

lint: venv  ## ruff (format and lint), mypy, snakefmt and Snakemake's own lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/snakefmt --check Snakefile workflow
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakemake --lint --configfile workflow/config/tiny.yaml

reference: venv  ## write the references of config and command line, the JSON schema and fidelity.md's table anew
	$(BIN)/python docs/reference.py

docs: venv  ## the documentation as a static site, site/index.html; a broken link is an error
	$(BIN)/python -m mkdocs build --strict  # --quiet would not see the warnings

optunahub: venv  ## the sampler as a package for OptunaHub, in dist/optunahub
	$(BIN)/python hub/assemble.py

coverage: venv  ## the test suite, and which lines of autoseg/ it leaves out
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m 'not long and not slurm and not page and not frameworks' --cov=autoseg --cov-report=term-missing:skip-covered

format: venv  ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: bench-metrics bench-peers bench-losses bench-data bench-search bench-search-answers bench-search-replayed bench-train bench-shrinking bench-synthetic bench-dag bench-demo bench-report  ## all benchmarks; each rewrites its section of benchmarks/README.md

bench-metrics: venv  ## the six metrics against plain torch and a bare confusion matrix
	$(BIN)/python -m benchmarks.metrics

bench-peers: $(FRAMEWORKS)/.installed  ## the metrics against torchmetrics' JaccardIndex, in one run
	$(FRAMEWORKS)/bin/python -m benchmarks.peers

bench-losses: venv  ## every loss as a multiple of cross entropy, and its peak memory
	$(BIN)/python -m benchmarks.losses

bench-data: venv  ## the proxy loader against decoding JPEGs every time, and its share of a training step
	$(BIN)/python -m benchmarks.data

bench-search: venv  ## PPO2 against random, TPE, CMA-ES and GP: regret of the answer, cost of asking (about an hour the first time)
	$(BIN)/python -m benchmarks.search

bench-search-answers: venv  ## the model's answer and the preset recommended, also on landscapes that are not quadratic (half an hour)
	$(BIN)/python -m benchmarks.search_answers

bench-search-replayed: venv  ## searches of recorded real trials: presets, early rejection, means over seeds (minutes)
	$(BIN)/python -m benchmarks.search_replayed

bench-train: venv  ## a whole step of a proxy trial against the bare network; scoring, memory (minutes)
	$(BIN)/python -m benchmarks.train

bench-shrinking: venv  ## labels and contrast of the proxy task's images against the release's way to shrink them
	$(BIN)/python -m benchmarks.shrinking

bench-synthetic: venv  ## the published curves against cross entropy on the made-up data set, three seeds (minutes)
	$(BIN)/python -m benchmarks.synthetic

bench-zoo: venv  ## surrogates searched for further metrics, and three seeds of each on other scenes (an hour)
	$(BIN)/python -m benchmarks.zoo

bench-dag: venv  ## planning the paper, and what Snakemake adds to a job
	$(BIN)/python -m benchmarks.dag

bench-demo: venv  ## the demo with three seeds: does a searched loss win on its own metric? (half an hour)
	$(BIN)/python -m benchmarks.demo

bench-am-lfs: venv  ## AM-LFS: does it converge, what tames it, its loss against cross entropy; photographs where they are: PETS=DIR WEIGHTS=FILE (20 minutes)
	PETS="$(PETS)" WEIGHTS="$(WEIGHTS)" $(BIN)/python -m benchmarks.am_lfs

bench-real: venv  ## searched losses against all rivals on photographs of pets, where the data are: PETS=DIR WEIGHTS=FILE (an hour or two)
	PETS="$(PETS)" WEIGHTS="$(WEIGHTS)" $(BIN)/python -m benchmarks.real

bench-slurm: venv  ## a search of 640 cheap trials through a SLURM cluster on this machine (as root; about a quarter of an hour; not in `bench`)
	$(BIN)/python tests/slurm/cluster.py run $(BIN)/python -m benchmarks.slurm

bench-polls: venv  ## how often a run asks SLURM, and the memory of its Snakemake, with 8,400 jobs (as root; ten minutes; not in `bench`)
	$(BIN)/python tests/slurm/cluster.py run $(BIN)/python -m benchmarks.polls

bench-report: venv  ## every table and figure of the demo, and its report, anew
	$(BIN)/python -m benchmarks.report

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(FRAMEWORKS) site .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
