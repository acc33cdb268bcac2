# Stageline's tasks. `make` lists them. Works with GNU make; run from anywhere with `make -C FOLDER`.
#   PYTHON=...   the interpreter that makes .venv (default: the first of 3.11 or later that works)
#   ARGS=...     further arguments for serve and bench
#   PEERS=FILE   servers that bench compares as well (docs/peers.toml); VERSUS=... further arguments of loadgen versus

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := .venv/bin
ARGS ?=
PEERS ?=
VERSUS ?=
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3.14 python3 python)

.PHONY: help setup serve test format bench kernels fuzz nightly clean

help:  ## List the tasks
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /|/' | while IFS='|' read -r name text; do printf '  make %-9s %s\n' "$$name" "$$text"; done

setup: .venv/.dev  ## Make .venv with everything, checks included
	@echo '.venv is ready'

serve: .venv/.run  ## Serve the default model, fetching it the first time
	@exec $(BIN)/stageline serve $(ARGS)

test: .venv/.dev  ## Run every check: format, lint, types, imports, tests
	@echo '== format (ruff format)';   $(BIN)/ruff format --check .
	@echo '== lint (ruff check)';      $(BIN)/ruff check .
	@echo '== types (mypy)';           $(BIN)/mypy
	@echo '== imports (lint-imports)'; $(BIN)/lint-imports
	@echo '== model for the tests';    $(BIN)/stageline model pull $${STAGELINE_MODEL:-}
	@echo '== tests (pytest)';         $(BIN)/python -m pytest $(ARGS)

format: .venv/.dev  ## Format the code and fix what lint can fix
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: .venv/.dev  ## Measure stages and pipeline with a runner that costs nothing; PEERS=FILE: servers too
	@for stage in ingress tokenize schedule execute sample detokenize stream; do $(BIN)/stageline bench $$stage --fake; done
	@$(BIN)/stageline bench pipeline --fake $(ARGS)
	@if [ -n '$(PEERS)' ]; then PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/loadgen versus '$(PEERS)' --beside-busy $(VERSUS); fi

kernels: .venv/.dev  ## Compile the GPU kernels for every supported model, and check registers, spills, shared memory
	@$(BIN)/stageline compile-kernels --processes $$(getconf _NPROCESSORS_ONLN) $(ARGS)

fuzz: .venv/.dev  ## Fuzz all readers of bytes from outside for a minute each (atheris; Linux)
	@$(BIN)/python -m pytest -m 'nightly or not nightly' tests/fuzz $(ARGS)

nightly: .venv/.dev  ## Run the tests that are too slow for `make test`
	@$(BIN)/python -m pytest -m nightly $(ARGS)

clean:  ## Remove .venv and what the tools left
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find pipeline loadgen tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: .run has what the server needs, .dev the checks too. Both are redone when pyproject.toml changes.

.venv/.dev: pyproject.toml | .venv/.made
	@echo '== install with the checks (the first time takes minutes: torch is large)'
	@$(BIN)/python -m pip install -e '.[dev]'
	@touch .venv/.run $@

.venv/.run: pyproject.toml | .venv/.made
	@if [ ! -e .venv/.dev ] || [ pyproject.toml -nt .venv/.dev ]; then \
	    echo '== install (the first time takes minutes: torch is large)'; \
	    $(BIN)/python -m pip install -e .; \
	fi
	@touch $@

.venv/.made:
	@if $(BIN)/python -m pip --version >/dev/null 2>&1; then touch $@; exit 0; fi; \
	for python in $(CANDIDATES); do \
	    if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "== .venv with $$("$$python" --version)"; \
	        "$$python" -m venv --clear .venv; \
	        touch $@; \
	        exit 0; \
	    fi; \
	done; \
	echo 'No Python 3.11 or later with venv found (tried: $(CANDIDATES)).' >&2; \
	echo 'Install one (Debian: apt install python3 python3-venv) or name it: make setup PYTHON=/path/to/python3' >&2; \
	exit 1
