# Everything runs in an environment of its own, .venv, made with the machine's python3 and pip.
# Another interpreter: make PYTHON=python3.12 demo

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Seconds after which the whole test run is ended, whatever hangs in it.
TEST_LIMIT ?= 5100
# quick | full
SCALE ?= quick
# More arguments for the command of a target: make test ARGS="-k tokens"
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Compiled programs are kept here from one run to the next.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.jax_cache
# XLA keeps its own thread pool. NumPy's BLAS and Clarabel would start one thread a core in every worker.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export RAYON_NUM_THREADS ?= 1
export XLA_FLAGS ?= --xla_cpu_multi_thread_eigen=false
# Some images forbid Python to keep the bytecode of what it has imported, and every process would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
# Two workers share one accelerator, where there is one.
export XLA_PYTHON_CLIENT_PREALLOCATE ?= false

# Modules are compiled to bytecode when they are first imported: most of what is installed never is.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --progress-bar off --no-compile -c constraints.txt
LIMIT := $(if $(shell command -v timeout),timeout --kill-after=30 $(TEST_LIMIT))
# A worker that dies fails its test and is not replaced: replaced ones were seen to wait for ever.
PYTEST := $(LIMIT) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-release test-times coverage check format bench bench-gpu referee docs clean distclean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.installed  ## a dozen instances to their certified limits: a table and a figure
	$(BIN)/jaxflow demo $(ARGS)

test: $(VENV)/.installed-dev  ## every law, bad input and counterexample, two tests at a time
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev  ## the long tests too: whole commands, notebooks, killed studies
	$(PYTEST) -m "not release" $(ARGS)

test-release: $(VENV)/.installed-dev  ## what test-all leaves to releases: instances and figures with a program of their own
	$(PYTEST) -m release $(ARGS)

test-times: $(VENV)/.installed-dev  ## wall, processor, tracing, lowering and compiling seconds of each test file: build/test-times.txt
	$(PYTEST) -p tests.times $(ARGS)
	@cat build/test-times.txt

# What runs in processes of its own is not counted.
COVERED := --cov --cov-report=
coverage: $(VENV)/.installed-dev  ## share of the lines that the tests run: make test alone, then all of them
	$(PYTEST) -m "not slow" $(COVERED) $(ARGS)
	$(BIN)/python -m coverage report --fail-under=85
	$(PYTEST) -m slow $(COVERED) --cov-append $(ARGS)
	$(BIN)/python -m coverage report --fail-under=95

check: $(VENV)/.installed-dev  ## Ruff, Pyright and the gates of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(LIMIT) $(BIN)/python -m pytest -q tests/architecture

format: $(VENV)/.installed-dev  ## let Ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev  ## every benchmark, one after the other, and their page: make bench SCALE=full
	$(BIN)/python benchmarks/suite.py --scale $(SCALE) $(ARGS)

bench-gpu: $(VENV)/.installed-dev  ## those of an accelerator, with a million limits: make bench-gpu SCALE=full
	$(BIN)/python benchmarks/suite.py --accelerator --scale $(SCALE) $(ARGS)

referee: $(VENV)/.installed-dev  ## every instance of the referee, and its counts: make referee ARGS="--only W --scale 0.1"
	$(BIN)/python -m tests.referee.run $(ARGS)

docs: $(VENV)/.installed-docs  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:  ## remove what was built and cached, but not the environment
	rm -rf build dist site .jax_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environment too
	rm -rf $(VENV)

# The build backend comes first and from the pins; without isolation pip would fetch another one.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxflow needs Python 3.11 or newer: make PYTHON=/path/to/python3 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing jaxflow into $(VENV): a minute or two, once"
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP_INSTALL) --no-build-isolation --editable '.[docs]'
	@touch $@
