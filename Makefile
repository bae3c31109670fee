# Every task of the project. `make` alone explains them; each sets the project up first when needed.
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick check bench soak interop matrix dist lock screenshots clean
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
BENCH := $(VENV)/.ready-bench
SOAK := $(VENV)/.ready-soak
PIP := $(BIN)/python -m pip --disable-pip-version-check
MINUTES ?= 30
export PYTHON
# Tests start hundreds of processes: without files of bytecode each would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

help: ## explain the targets
	@echo "Tidemill: make TARGET"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Needs Python 3.11 to 3.14 and Java >= 17. PYTHON=/path/to/python chooses the interpreter;"
	@echo "ARGS='...' is handed to demo, test (pytest), bench and soak; test ROOM=query runs tests/query only."

setup: $(READY) ## create .venv with what runs the product, pinned, and the project (nothing to do when up to date)

$(READY): pyproject.toml requirements.lock
	@python="$$(scripts/doctor.sh)" || exit 1; \
	if $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "setup: bringing $(VENV) up to date"; \
	else echo "setup: creating $(VENV) with $$python"; "$$python" -m venv --clear $(VENV); fi
	@$(PIP) install --quiet --requirement requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup: ready"

$(VENV)/.ready-%: requirements-%.lock $(READY)
	@echo "setup: adding requirements-$*.lock"
	@$(PIP) install --quiet --requirement requirements.lock --requirement requirements-$*.lock
	@touch $@

demo: setup ## a seeded story on Spark: late, repeated and broken feeds in, exact rollups out, proven; SERVE=1: then the console
	@$(BIN)/python -m examples.demo $(if $(SERVE),--serve) $(ARGS)

check: $(DEV) ## ruff, mypy --strict, the layers (import-linter), the house rules, what commands import, the console's types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/house_rules.py
	@$(BIN)/python scripts/startup.py
	@$(BIN)/python scripts/sync_client.py --check
	@scripts/check_console.sh

test: check ## check, then every test (the long ones apart: see soak), the same every time; ROOM=query: only tests/query
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -rs $(ARGS) $(ROOM:%=tests/%)

quick: $(DEV) ## the tests without Spark, processes and whole warehouses, with a tenth of the examples, in under 90 s; ROOM as for test
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not soak and not spark and not process and not variety and not long' --hypothesis-profile=quick $(ARGS) $(ROOM:%=tests/%)

soak: $(DEV) $(SOAK) ## the long tests with new examples, killed processes and fuzzing, for MINUTES=30; prints figures
	@$(BIN)/python scripts/soak.py --minutes $(MINUTES) $(ARGS)

interop: $(DEV) ## read all tables with deltalake, Polars, DuckDB and the Delta connector of Spark; demo, crashes and oracles on a real S3 server (by Go)
	@PYTHONPATH=. $(BIN)/python scripts/interop.py

bench: $(BENCH) ## speed and memory beside DuckDB, Polars, PySpark and Bytewax; writes bench/results.json
	@$(BIN)/python -m bench.run $(ARGS)

matrix: ## demo and test in an empty clone, with every Python and every Java of the machine; prints a table
	@scripts/matrix.sh $(ARGS)

dist: setup ## build the wheel and the source distribution in dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build

screenshots: $(DEV) ## pictures of each page of the console, in docs/images (needs Chromium)
	@$(BIN)/python scripts/screenshots.py

lock: ## renew the locks from pyproject.toml
	@scripts/lock.sh

clean: ## remove everything that the other targets made
	rm -rf $(VENV) build dist demo bench/work spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
