# make quickstart   the environment, a small translator, and what it can do
# make test         the tests that every change must pass, in a few minutes
# make laws         all laws over all systems, not only representative ones
# make test-portability   the laws and the parts with the kernels of other processors, on one and two threads
# make lint         ruff and mypy
# make docs         the documentation site in build/site, all links checked
# make bench        this machine's speeds
# make bench-check  whether training and decoding on this CPU are as fast as recorded, relative to plain PyTorch

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # the tests start many processes, and each would compile the package anew

.PHONY: quickstart test laws test-portability lint docs bench bench-check format clean

quickstart: $(VENV)/core
	$(BIN)/dragoman quickstart

test: $(VENV)/dev
	$(PYTEST)

laws: $(VENV)/dev
	$(PYTEST) -m '(laws or exhaustive) and not slow and not gpu and not peer'

# Without ATEN_CPU_CAPABILITY PyTorch takes the processor's own kernels.
test-portability: $(VENV)/dev
	for threads in 1 2; do \
		for capability in default avx2 ''; do \
			echo "kernels: $${capability:-native}, threads: $$threads"; \
			env $${capability:+ATEN_CPU_CAPABILITY=$$capability} OMP_NUM_THREADS=$$threads OMP_WAIT_POLICY=passive \
				$(PYTEST) tests/laws tests/models tests/objectives tests/parts tests/search tests/systems || exit 1; \
		done; \
	done

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev
	$(BIN)/python benchmarks/scale.py --pairs 100000

bench-check: $(VENV)/dev
	$(BIN)/python benchmarks/check_speed.py

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

$(VENV)/docs: $(VENV)/core
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@
