# `make quickstart` and `make test` each do everything they need on a machine with only Python 3.11 and this checkout:
# create the environment in .venv, install into it, run. A second run reuses it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt

# One thread a process: two processes with two threads each crawl on two cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart test lint types slow clean

quickstart: $(VENV)/.installed-eval
	$(BIN)/trl-consistency quickstart

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

clean:
	rm -rf $(VENV) outputs quickstart

# Torch first and on its own: a later resolution then takes the build that is there instead of a larger one.
$(VENV)/.installed-torch: .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Creating the environment in $(VENV) (a few minutes, once) ..."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed-torch pyproject.toml
	$(INSTALL) --editable '.[$*]'
	@touch $@
