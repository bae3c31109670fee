# Every task of the project. `make` alone explains them; each sets the project up first when needed.
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench soak lock clean
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PYTHON

help: ## explain the targets
	@echo "Tidemill: make TARGET"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Needs Python >= 3.11 and Java >= 17. PYTHON=/path/to/python chooses the interpreter;"
	@echo "ARGS='...' is handed to demo, test (pytest), bench and soak."

setup: $(READY) ## create .venv with the pinned dependencies and the project (does nothing when it is up to date)

$(READY): pyproject.toml requirements.lock
	@python="$$(scripts/doctor.sh)" || exit 1; \
	if $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "setup: bringing $(VENV) up to date"; \
	else echo "setup: creating $(VENV) with $$python"; "$$python" -m venv --clear $(VENV); fi
	@$(PIP) install --quiet --requirement requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "setup: ready"

demo: setup ## a seeded story on Spark: late, repeated and broken feeds in, exact rollups out, proven
	@$(BIN)/python -m tidemill.demo $(ARGS)

check: setup ## ruff, mypy --strict, the rooms (import-linter) and the house rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/rooms.py
	@$(BIN)/python scripts/house_rules.py

test: check ## check, then every test (the long ones apart: see soak)
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

soak: setup ## the long tests, and properties with ten times as many new examples; a failure says how to repeat it
	@$(BIN)/python -m pytest -m 'soak or property' --hypothesis-profile=soak $(ARGS)

bench: setup ## speed and memory beside DuckDB, Polars, PySpark and Bytewax; writes bench/results.json
	@$(BIN)/python -m bench.run $(ARGS)

lock: ## renew requirements.lock from pyproject.toml
	@scripts/lock.sh

clean: ## remove everything that the other targets made
	rm -rf $(VENV) build dist demo bench/work spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
