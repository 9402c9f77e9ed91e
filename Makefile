# `make up` works on a fresh machine with Python 3.11 or newer; nothing else is needed.

BIN := .venv/bin
UV := $(or $(wildcard $(BIN)/uv),uv)
CORES = $(shell python3 -c "import os; print(min(4, os.cpu_count() or 1))")
# Twice the number of cores, because end-to-end tests wait a lot; at most four. Others wait for
# nothing, and each process collects all tests.
PROCESSES = $(shell python3 -c "import os; print(min(4, 2 * (os.cpu_count() or 1)))")
# In the order of the folders, which puts slow tests first, so that no core is idle at the end.
PYTEST = $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
LOCK := $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock" --quiet

# Tests start hundreds of Python processes; without bytecode each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup up demo check test test-pythons sbom soak bench bench-guard lint schemas dictionary docs notebook picture screenshots lock lock-jars clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## Install everything into .venv (instant when nothing changed)
	@command -v python3 >/dev/null || { echo "Headwater needs Python 3.11 or newer, and python3 is not on the PATH."; exit 1; }
	@python3 bootstrap.py

up: setup ## Run everything on this machine, with a demo day; Ctrl-C stops it (ARGS="--port 9000")
	@$(BIN)/headwater up $(ARGS)

demo: setup ## Like up, but stop once the rows are printed
	@$(BIN)/headwater up --demo $(ARGS)

check: PROCESSES = $(CORES)
check: lint ## Everyday use: lint, and the tests that need neither Kafka nor Postgres, in three minutes
	@$(PYTEST) tests/architecture tests/unit tests/property tests/workflows $(ARGS)

test: setup .venv-notebook/stamp ## Run every test, with real Kafka and Postgres (ARGS="-k name")
	@$(PYTEST) $(ARGS)

# Of the package, and of the Dockerfile.
PYTHONS := 3.11 3.12 3.13 3.14

test-pythons: ## Run the tests of `check` with every supported Python that uv finds (PYTHONS="3.14")
	@command -v $(UV) >/dev/null || { echo "make test-pythons needs uv: pip install uv"; exit 1; }
	@for version in $(PYTHONS); do \
		$(MAKE) --no-print-directory .venv-pythons/$$version || exit 1; \
	done

.venv-pythons/%: FORCE
	@if ! $(UV) python find $* >/dev/null 2>&1; then echo "Python $* is skipped: uv does not find it"; exit 0; fi; \
	echo "Testing with Python $*"; \
	$(UV) venv --quiet --allow-existing --python $* $@ && \
	$(UV) pip install --no-config --quiet --python $@/bin/python --require-hashes --requirement requirements-dev.txt && \
	$(UV) pip install --no-config --quiet --python $@/bin/python --no-deps --no-build-isolation --editable . --editable headwater-github && \
	$@/bin/python -m pytest --quiet --numprocesses $(CORES) --dist loadfile -p no:cacheprovider \
		tests/architecture tests/unit tests/property tests/workflows $(ARGS)

FORCE:

sbom: ## Write dist/headwater.cdx.json, the bill of materials of what an installation contains
	@python3 deploy/sbom.py --output dist/headwater.cdx.json

soak: setup ## Run long fault-injection tests, with your own seeds (SEEDS="1 2 3")
	@TEST_SEEDS="$(SEEDS)" $(BIN)/pytest -m soak --timeout 3600 $(ARGS)

bench: setup .venv-bench/stamp ## Run the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

bench-guard: setup ## Compare the speed of the working tree with that of a commit (ARGS="HEAD~3")
	@$(BIN)/python -m benchmarks.guard $(ARGS)

.venv-bench/stamp: requirements-bench.txt
	@echo "Installing the libraries that the benchmarks compare with, in .venv-bench"
	@$(BIN)/python -m venv --clear --without-pip .venv-bench
	@$(PIP) --python .venv-bench install --require-hashes --requirement requirements-bench.txt
	@touch $@

docs: setup ## Build the documentation site into site/, and check its links
	@$(BIN)/python docs/build_site.py

notebook: setup .venv-notebook/stamp ## Open the notebook for analysts (ARGS="--user user_bo")
	@.venv-notebook/bin/marimo edit docs/data/month.py -- $(ARGS)

picture: setup .venv-notebook/stamp ## Draw docs/data/month.svg, the picture in the README
	@$(BIN)/python docs/data/draw_month.py

screenshots: setup ## Draw docs/console/*.png with Chromium
	@$(BIN)/python docs/console/draw.py

.venv-notebook/stamp: requirements-notebook.txt
	@echo "Installing the packages of the notebook, in .venv-notebook"
	@$(BIN)/python -m venv --clear --without-pip .venv-notebook
	@$(PIP) --python .venv-notebook install --no-compile --require-hashes \
		--requirement requirements-notebook.txt
	@touch $@

lint: setup ## Check style, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

schemas: setup ## Generate the Avro files from the structs
	@$(BIN)/python -m headwater.schemas.write

dictionary: setup ## Generate docs/data/README.md from the table comments
	@$(BIN)/python -m headwater.projections.postgres.dictionary docs/data/README.md

lock: ## Update the pinned Python packages from pyproject.toml (needs uv)
	$(LOCK) pyproject.toml --extra server --output-file requirements.txt
	echo 'setuptools>=77' | $(LOCK) pyproject.toml - --extra local --extra mcp --extra otel --group dev --constraint requirements.txt \
		--output-file requirements-dev.txt
	echo 'setuptools>=77' | $(LOCK) - --constraint requirements-dev.txt --output-file requirements-build.txt
	$(LOCK) --group bench --output-file requirements-bench.txt
	$(LOCK) --group notebook --output-file requirements-notebook.txt

lock-jars: setup ## Update the pinned jars of Kafka
	@$(BIN)/python -m headwater.streams.kafka.jars --lock

clean: ## Remove .venv and build output, but not the data in .headwater
	rm -rf .venv .venv-bench .venv-notebook .venv-pythons build dist site *.egg-info headwater-github/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
