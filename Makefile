PYTHON ?= python
PACKAGES = autoshard costmodels tests experiments

.DEFAULT_GOAL := help
.PHONY: help install test slow lint format types docs bench bench-iopddl bench-solver ci

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install:  ## install in place with everything that development needs
	$(PYTHON) -m pip install -e '.[dev]'

test:  ## the default suite
	$(PYTHON) -m pytest -n auto

slow:  ## the tests that take minutes each
	$(PYTHON) -m pytest -m slow

lint:  ## ruff: style and formatting
	ruff check $(PACKAGES)
	ruff format --check $(PACKAGES)

format:  ## rewrite in ruff's formatting
	ruff format $(PACKAGES)

types:  ## pyright, strict
	pyright

docs:  ## check that the README's commands, the floors and the examples are what the code does
	$(PYTHON) -m pytest -q tests/test_layers.py tests/test_docs.py

bench:  ## module to Problem on the largest real programs: seconds and memory (needs ../shared)
	$(PYTHON) experiments/bench/run.py

bench-iopddl:  ## contest instances at the contest's time limits (needs ../shared); ARGS="--cold G=20"
	$(PYTHON) experiments/iopddl/run.py $(ARGS)

bench-solver:  ## problems of real programs, with and without a tight memory limit (needs ../shared); ARGS=...
	$(PYTHON) experiments/solver/run.py $(ARGS)

ci:  ## what continuous integration runs: a fresh clone in a fresh virtual environment
	.ci/run
