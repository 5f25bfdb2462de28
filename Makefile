# Every target prepares what it needs. `make setup` alone prepares .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
WORKERS ?= 2
export PYTHONDONTWRITEBYTECODE =  # what is compiled is kept: tests with their asserts rewritten take half a minute

.PHONY: help setup demo test test-all run-tests lint types docs bench bench-env clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: $(READY)  ## prepare .venv with the package and its developer tools

$(READY): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing foretrain and its tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: setup  ## install, then examine two built-in networks and write the interactive page
	@$(BIN)/foretrain report --example -o demo/report.html --overwrite

# Types are checked beside the tests: mypy would leave a core idle for a minute.
test: setup  ## install, then lint, types and the quick tests
	@$(MAKE) --no-print-directory --jobs 3 lint types run-tests

test-all: setup  ## everything: also the slow, the Monte-Carlo and the packaging tests
	@start=$$(date +%s); $(MAKE) --no-print-directory --jobs 3 lint types run-tests SELECTED="-m ''"; code=$$?; \
	echo "make test-all: $$((($$(date +%s) - start) / 60)) minutes"; exit $$code

run-tests: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(SELECTED)

lint: setup  ## ruff: format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup  ## mypy --strict on the package
	$(BIN)/mypy

docs: $(DOCS_READY)  ## the documentation into site/, with the Python on its pages run
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "written: site/index.html, which opens without a network"

$(DOCS_READY): $(READY)
	@echo "installing the tools of the documentation into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

bench: setup  ## table of ratios to peers and to the arithmetic limit
	$(BIN)/python -m bench

bench-env: setup  ## peers of the benchmarks, each in an environment of its own
	$(BIN)/python -m bench.peers

clean:  ## remove .venv and everything made
	rm -rf $(VENV) .bench .cache build dist demo site .mypy_cache .pytest_cache .ruff_cache .hypothesis
