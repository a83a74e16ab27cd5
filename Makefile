PYTHON ?= python3
# Test processes, each with one torch thread.
JOBS ?= 2
# More arguments for pytest or univerb lab speed: make test ARGS="-k vocabulary"
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CORE := $(VENV)/.stamp-core
DEV := $(VENV)/.stamp-dev
PLOTS := $(VENV)/.stamp-plots
CHECKS := check-lint check-format check-types check-imports check-docstrings check-spelling check-links

.DEFAULT_GOAL := help
.PHONY: help install demo test fuzz stress check $(CHECKS) speed docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

install: $(CORE) ## Install univerb into .venv

demo: $(CORE) ## Generate text with phrases from the demo documents
	$(BIN)/univerb setup
	$(BIN)/univerb demo

test: $(DEV) ## Run the tests
	$(BIN)/univerb setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

fuzz: $(DEV) ## Run the property tests with new random cases
	$(BIN)/univerb setup
	HYPOTHESIS_PROFILE=fuzz OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m 'hypothesis and not stress' $(ARGS)

stress: $(DEV) ## Run the long tests: thousands of cases, random kills, fuzzing
	$(BIN)/univerb setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) -m stress $(ARGS)

check: $(DEV) ## Run every linter, also after one has failed
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

check-lint: $(DEV)
	$(BIN)/ruff check

check-format: $(DEV)
	$(BIN)/ruff format --check

check-types: $(DEV)
	$(BIN)/mypy

check-imports: $(DEV)
	$(BIN)/lint-imports --no-logo

check-docstrings: $(DEV)
	$(BIN)/pydoclint --quiet src/univerb

check-spelling: $(DEV)
	$(BIN)/codespell

check-links: $(DEV)
	$(BIN)/python tests/docs/links.py

speed: $(PLOTS) ## Time univerb beside HF and llama.cpp: make speed ARGS="head --limit 5"
	$(BIN)/univerb setup
	$(BIN)/univerb lab speed $(ARGS)

docs: $(CORE) ## Make again the outputs and the picture that README shows
	$(BIN)/univerb setup
	$(BIN)/python tests/docs/shown.py README.md
	$(BIN)/python docs/picture.py

clean: ## Remove .venv, builds and caches; the model cache in your home stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "univerb needs Python 3.11 or newer. Name one: make PYTHON=python3.12 ...")'
	@echo "Installing univerb into $(VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -qq -c constraints.txt -e '.[gguf,index,llamacpp]'
	@touch $@

$(PLOTS): $(CORE)
	$(PIP) install -qq -c constraints.txt -e '.[gguf,index,llamacpp,plots,train]'
	@touch $@

$(DEV): $(CORE)
	@echo "Installing the development tools into $(VENV)."
	$(PIP) install -qq -c constraints.txt -e '.[dev]'
	@touch $@
