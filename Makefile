# Everything starts here: `make up` on a fresh machine with Python 3.11 or newer, nothing else needed.

BIN := .venv/bin
UV := $(or $(wildcard $(BIN)/uv),uv)
# Twice as many as there are cores, because tests of whole systems wait a lot; four at the most.
PROCESSES = $(shell python3 -c "import os; print(min(4, 2 * (os.cpu_count() or 1)))")
# In the order of the folders, whose slow tests come first, so that no core is idle at the end.
PYTEST = $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder
LOCK := $(UV) pip compile --universal --python-version 3.11 --generate-hashes --no-annotate \
	--custom-compile-command "make lock" --quiet

# Tests start hundreds of Pythons; without bytecode each of them would compile all of us again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup up demo check test soak bench lint schemas map dictionary notebook picture lock lock-jars clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: ## Install everything into .venv (instant when nothing changed)
	@command -v python3 >/dev/null || { echo "Headwater needs Python 3.11 or newer, and there is no python3 here."; exit 1; }
	@python3 bootstrap.py

up: setup ## Everything on this machine, with a day to look at; Ctrl-C stops it (ARGS="--port 9000")
	@$(BIN)/headwater up $(ARGS)

demo: setup ## Like up, but stops once the rows are printed
	@$(BIN)/headwater up --demo $(ARGS)

check: lint ## For everyday use: lint, and the tests that need no Kafka or Postgres, in two minutes
	@$(PYTEST) tests/architecture tests/unit tests/property tests/workflows $(ARGS)

test: setup .venv-notebook/stamp ## Run every test against the real parts (ARGS="-k name")
	@$(PYTEST) $(ARGS)

soak: setup ## Long campaigns of faults, with seeds of your own (SEEDS="1 2 3")
	@TEST_SEEDS="$(SEEDS)" $(BIN)/pytest -m soak --timeout 3600 $(ARGS)

bench: setup .venv-bench/stamp ## Run the benchmarks
	@$(BIN)/python -m benchmarks $(ARGS)

.venv-bench/stamp: requirements-bench.txt
	@echo "Installing what Headwater is measured beside, in .venv-bench"
	@$(BIN)/python -m venv --clear .venv-bench
	@.venv-bench/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes \
		--requirement requirements-bench.txt
	@touch $@

notebook: setup .venv-notebook/stamp ## Open the notebook for analysts (ARGS="--user user_bo")
	@.venv-notebook/bin/marimo edit docs/data/month.py -- $(ARGS)

picture: setup .venv-notebook/stamp ## Draw docs/data/month.svg, the picture in the README
	@$(BIN)/python docs/data/month_of_somebody.py

.venv-notebook/stamp: requirements-notebook.txt
	@echo "Installing what the notebook needs, in .venv-notebook"
	@$(BIN)/python -m venv --clear .venv-notebook
	@.venv-notebook/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes \
		--requirement requirements-notebook.txt
	@touch $@

lint: setup ## Check style, types and the walls between the rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

map: ## Write docs/map.md, a line for each file
	@python3 docs/make_map.py

schemas: setup ## Make the Avro files from the structs
	@$(BIN)/python -m headwater.schemas.write

dictionary: setup ## Write docs/data/README.md, from the comments of the tables
	@$(BIN)/python -m headwater.projections.postgres.dictionary docs/data/README.md

lock: ## Pin the Python packages anew, from pyproject.toml (needs uv)
	$(LOCK) pyproject.toml --extra server --output-file requirements.txt
	echo 'setuptools>=77' | $(LOCK) pyproject.toml - --extra local --group dev --constraint requirements.txt \
		--output-file requirements-dev.txt
	echo 'setuptools>=77' | $(LOCK) - --constraint requirements-dev.txt --output-file requirements-build.txt
	$(LOCK) --group bench --output-file requirements-bench.txt
	$(LOCK) --group notebook --output-file requirements-notebook.txt

lock-jars: setup ## Pin Kafka's jars anew
	@$(BIN)/python -m headwater.streams.kafka.jars --lock

clean: ## Remove .venv and what was built; the data in .headwater stays
	rm -rf .venv .venv-bench .venv-notebook build dist *.egg-info headwater-github/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
