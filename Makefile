# Every target sets up what it needs in .venv on a machine that has only Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2

.PHONY: help setup demo test simulation kills hostile lint format claims bench lock clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Blindpost needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## create .venv with the pinned dependencies and this package

demo: $(READY) ## encrypted letters through a router that is killed in the middle
	$(BIN)/blindpost demo

test: $(READY) ## the whole test suite
	$(BIN)/python -m pytest -q -n $(WORKERS)

simulation: $(READY) ## five thousand seeds of hard times for the router, judged by a model
	BLINDPOST_SEEDS=5000 $(BIN)/python -m pytest -q -n $(WORKERS) tests/router/test_simulation.py

kills: $(READY) ## kill -9 the router a hundred times under load
	BLINDPOST_KILLS=100 $(BIN)/python -m pytest -q tests/router/test_kill.py

hostile: $(READY) ## ten thousand connections opened and dropped, slow readers, garbage
	BLINDPOST_CONNECTIONS=10000 BLINDPOST_SLOW_QUEUES=3000 $(BIN)/python -m pytest -q tests/router/test_hostile.py

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

claims: $(READY) ## run the tests and count the claims they show
	$(BIN)/python -m pytest -q -n $(WORKERS) --claims

bench: $(READY) ## the benchmarks, short form
	$(BIN)/python -m benchmarks.floor
	$(BIN)/python -m benchmarks.transport
	$(BIN)/python -m benchmarks.router --quick
	$(BIN)/python -m benchmarks.moving --queues 20000
	$(BIN)/python -m benchmarks.ds --stored 10 10000 --cycles 300 --wakes 200

lock: ## renew requirements.lock from pyproject.toml
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv
	$(VENV)-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra pipeline --generate-hashes \
		--no-header --no-emit-index-url --no-annotate --upgrade -o requirements.lock pyproject.toml
	rm -rf $(VENV)-lock

clean: ## remove everything that the other targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
