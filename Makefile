# make quickstart   the environment, a small translator, and what it can do
# make test         every test that needs no GPU and no other toolkit
# make lint         ruff and mypy
# make bench        this machine's speeds

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: quickstart test lint bench format clean

quickstart: $(VENV)/core
	$(BIN)/dragoman quickstart

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev
	$(BIN)/python benchmarks/scale.py --pairs 100000

clean:
	rm -rf $(VENV) runs build

$(VENV)/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dragoman needs Python 3.11 or newer: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1; }
	@echo "making the environment in $(VENV): a few minutes, mostly PyTorch's download"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[serve]'
	@touch $@

$(VENV)/dev: $(VENV)/core
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
