# Everything runs from one virtual environment, made once and kept until its inputs change.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint format bench setup clean
.DEFAULT_GOAL := demo

demo: $(STAMP)  ## set everything up and run the main job
	$(BIN)/overspill demo

test: $(STAMP)  ## set everything up and run the tests
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

# BENCH_DIR must lie on the disk to be measured; the peers come with the first run.
BENCH_DIR ?= .
bench: $(STAMP)  ## measure against peers and against the disk
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m benchmarks --dir $(BENCH_DIR)

setup: $(STAMP)

# pip with a constraints file that pins every version, build requirements included.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet torch==2.13.0
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --editable '.[pyg,dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
