# make study   set up, then data -> sweep -> fit -> report on this machine
# make test    set up, then every test, the ones on a real SLURM included
# make quick   the tests that start no process, in less than a minute
# make kernels the analysis' tests under other BLAS kernels and numbers of threads, as on other machines
# make check   ruff, mypy --strict, import-linter
# make mutants small changes of the pure parts: which of them does no test notice? (on all cores but one)
# make docs    the manual as a site with search, in build/site
# make dist    sdist and wheel in dist/, built twice and compared
# make slurm   a throwaway SLURM cluster to play with
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
# pip's hundreds of lines as one that counts; errors go to the terminal as they are.
COUNT := awk '/^(Collecting|Processing|Requirement)/ {n++; if (n % 10 == 0) {printf "\r   %d packages found", n; fflush()}} \
  /^Installing collected/ {printf "\r   installing %d packages, a minute or so", n; fflush()} END {print ""}'

.PHONY: study test quick kernels check mutants docs dist slurm lock clean help
.DEFAULT_GOAL := help

help: ## say what there is
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

.venv/ready: pyproject.toml constraints.txt
	@echo "== set-up: .venv from constraints.txt"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv || { echo "python3 -m venv failed: on Debian or Ubuntu, apt-get install python3-venv"; exit 1; }
	@$(PIP) --editable . | $(COUNT)
	@touch $@

.venv/ready-dev: .venv/ready
	@echo "== set-up: tools for tests and checks"
	@$(PIP) --editable '.[dev]' | $(COUNT)
	@touch $@

study: .venv/ready
	@$(BIN)/python -m study reproduce

# Tests start a thousand processes: where Python may write no bytecode, each would compile all of its modules anew.
test kernels: export PYTHONDONTWRITEBYTECODE :=

test: .venv/ready-dev
	@$(BIN)/python -m tests.slurm.install
	$(BIN)/python -m pytest --numprocesses 8 --dist worksteal --durations 20

quick: .venv/ready-dev
	$(BIN)/python -m pytest -m quick --numprocesses 2 --dist worksteal

# KERNEL:THREADS; what the tests compare with is the same under all of them, the published anchors included. Two kernels
# beside the machine's own, which `make test` has.
kernels: .venv/ready-dev
	@settings="$${BLAS_KERNELS:-$$($(BIN)/python -m tests.analysis.blas_kernels)}" && for setting in $$settings; do \
	  echo "== $$setting"; \
	  OPENBLAS_CORETYPE=$${setting%%:*} OMP_NUM_THREADS=$${setting##*:} OPENBLAS_NUM_THREADS=$${setting##*:} \
	  $(BIN)/python -m pytest --quiet --numprocesses 4 --dist worksteal tests/analysis || exit 1; done

check: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

mutants: .venv/ready-dev
	$(BIN)/python -m benchmarks.mutants --reach .mutants-reach.jsonl --out .mutants.jsonl

docs: .venv/ready-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file .ci/site/mkdocs.yml
	@echo "build/site; to read and search it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

dist: .venv/ready-dev
	$(BIN)/python .ci/dist.py

slurm: .venv/ready-dev
	@$(BIN)/python -m tests.slurm.install
	@$(BIN)/python -m tests.slurm

lock: .venv/ready-dev ## write constraints.txt from what is installed
	{ echo "# Every version of the locked environment (make lock writes this file)."; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu//'; } > constraints.txt

clean: ## remove what a study made, DVC's copies too, and restore the results that git tracks; never touches .venv
	rm -rf data runs reports mlflow.db mlflow.db-* mlartifacts dvc.lock .dvc/cache .dvc/tmp dvc_plots
	@git checkout --quiet -- dvc.lock reports 2>/dev/null || true
