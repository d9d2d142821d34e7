# Every target sets up what it needs in .venv on a machine that has only Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
# Python keeps what it compiled, whatever the machine's default is: each command starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo pipeline browser test simulation simulate simulate-long kills fronts takeovers hostile attack fuzz fuzz-long mutants sbom soak notifier-kills ds-kills bot-kills agent-scale pipeline-long lint format claims \
	bench figures bench-pipeline bench-pipeline-1e8 lock clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): requirements.lock pip.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Blindpost needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r pip.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY) ## create .venv with the pinned dependencies and this package

demo: $(READY) ## the whole system at work on this machine, in a few minutes; files in build/demo
	rm -rf build/demo
	$(BIN)/blindpost demo --folder build/demo

pipeline: $(READY) ## a generated fleet with known faults, every table on Spark, one HTML report
	rm -rf build/pipeline
	$(BIN)/blindpost pipeline generate build/pipeline/fleet --routers 3 --days 2 --scale 0.02
	$(BIN)/blindpost pipeline run --journal build/pipeline/fleet/journal --out build/pipeline/lake --report build/pipeline/report.html

browser: ## Debian's Chromium for the tests of pages, where it can be installed; they are skipped without it
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null 2>&1; } || \
		echo "no Chromium here: the tests of pages in a browser will be skipped"

test: $(READY) browser ## the whole test suite
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

simulation: $(READY) ## five thousand seeds of hard times for the router, judged by a model
	BLINDPOST_SEEDS=5000 $(BIN)/python -m pytest -q -n $(WORKERS) tests/router/test_simulation.py

simulate: $(READY) ## the whole network in one run: SEED, SEEDS of them in JOBS processes (SUMS: a file to continue from), or HOURS of virtual time, or HARD=1; JOURNALS: a folder whose journals go through the pipeline; a failure is told as a story
	$(BIN)/python -m simulation --seed $(or $(SEED),0) --seeds $(or $(SEEDS),1) --jobs $(or $(JOBS),1) $(if $(SUMS),--sums $(SUMS)) $(if $(HOURS),--hours $(HOURS)) $(if $(HARD),--hard) $(if $(JOURNALS),--journals $(JOURNALS))

simulate-long: $(READY) ## ten thousand short runs of the whole network, a long one, and the bugs that they must find
	$(BIN)/python -m simulation --seeds $(or $(SEEDS),10000) --jobs $(or $(JOBS),$(WORKERS))
	$(BIN)/python -m simulation --hours 24
	BLINDPOST_PLANTED=1 $(BIN)/python -m pytest -q -s -n $(WORKERS) tests/simulation/test_planted_bugs.py

kills: $(READY) ## kill -9 the router a hundred times under load
	BLINDPOST_KILLS=100 $(BIN)/python -m pytest -q tests/router/test_kill.py

fronts: $(READY) ## the router's tests with two fronts; fronts and engine killed two hundred times under load
	BLINDPOST_FRONT_ROUNDS=67 $(BIN)/python -m pytest -q tests/router/test_fronts.py
	BLINDPOST_FRONTS=2 $(BIN)/python -m pytest -q -n $(WORKERS) tests/serving/test_upgrading.py tests/cli/test_lifecycle.py \
		tests/cli/test_draining.py tests/cli/test_limits.py tests/web/test_shared_port.py tests/router

takeovers: $(READY) ## fifty take-overs by a standby under load: owner killed, frozen, cut off, told to
	BLINDPOST_TAKEOVERS=50 $(BIN)/python -m pytest -q -s tests/router/test_standby.py -k whatever

hostile: $(READY) ## ten thousand connections opened and dropped, slow readers, garbage
	BLINDPOST_CONNECTIONS=10000 BLINDPOST_SLOW_QUEUES=3000 $(BIN)/python -m pytest -q tests/router/test_hostile.py

attack: $(READY) ## strangers attack each server on each store while a bystander looks on; figures in build/attacks.md
	mkdir -p build && rm -f build/attacks.md
	BLINDPOST_ATTACK_S=20 BLINDPOST_ATTACK_TABLE=$(CURDIR)/build/attacks.md $(BIN)/python -m pytest -q tests/attack
	cat build/attacks.md

soak: $(READY) ## two agents, two routers, 2,000 messages, rotations, kills, a restored backup
	BLINDPOST_AGENT_MESSAGES=2000 BLINDPOST_AGENT_KILLS=60 $(BIN)/python -m pytest -q tests/agent/test_soak.py

notifier-kills: $(READY) ## kill -9 around the notification router: 3 routers, Apple, a Web Push service, 1,000 tokens of both
	BLINDPOST_NTF_KILLS=50 BLINDPOST_NTF_ROUTERS=3 BLINDPOST_NTF_TOKENS=1000 \
		$(BIN)/python -m pytest -q tests/ntf/test_process.py -k kill

ds-kills: $(READY) ## a thousand long polls and fifty producers of a delivery service, cut and killed fifty times
	BLINDPOST_DS_ROUNDS=50 BLINDPOST_DS_PRODUCERS=50 BLINDPOST_DS_READERS=1000 \
		BLINDPOST_DS_RECIPIENTS=100000 BLINDPOST_DS_LARGE=30 $(BIN)/python -m pytest -q tests/ds/test_kills.py \
		tests/ds/test_waiting.py::test_nothing_is_left_of_those_who_were_here \
		tests/ds/test_taking.py::test_a_large_queue_comes_in_parts

bot-kills: $(READY) ## kill -9 a bot three hundred times under load from fifty contacts
	BLINDPOST_BOT_KILLS=300 BLINDPOST_BOT_CONTACTS=50 $(BIN)/python -m pytest -q -s tests/bot/test_kills.py

fuzz: $(READY) ## strange input for TARGET (all of them without it), MINUTES each, guided by what it reaches
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--only-binary :all: --require-hashes -r fuzz/requirements.lock 2>/dev/null || true
	@for target in $(or $(TARGET),$$($(BIN)/python -m fuzz | cut -d ' ' -f 1)); do \
		$(BIN)/python -m fuzz $$target --minutes $(or $(MINUTES),1) || exit 1; \
	done

fuzz-long: $(READY) ## every target, JOBS at a time, MINUTES each: one line a minute, a table at the end and in build/fuzz/summary.md
	$(BIN)/python -m fuzz --all --minutes $(or $(MINUTES),30) --jobs $(or $(JOBS),2) --seed $(or $(SEED),1)

mutants: $(READY) ## small mistakes in decision code that tests must notice: MODULE (all without it), SAMPLE of each
	$(BIN)/python -m mutants $(MODULE) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(WRITE),--write)

sbom: $(READY) ## build/sbom.json: every pinned dependency with its hashes, as CycloneDX
	@mkdir -p build
	$(BIN)/python deploy/sbom.py requirements.lock build/sbom.json

agent-scale: $(READY) ## a hundred thousand queues of one agent, contacts of one bot, and more seeds of hard times for a service
	BLINDPOST_AGENT_QUEUES=100000 BLINDPOST_SERVICE_SEEDS=100 \
		$(BIN)/python -m pytest -q tests/agent/test_scale.py tests/agent/test_service_simulation.py
	$(BIN)/python -m benchmarks.bot_scale

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
	$(BIN)/python -m benchmarks.journal
	$(BIN)/python -m benchmarks.agent
	$(BIN)/python -m benchmarks.agent_scale --queues 1000 10000 --subscribed 2000
	$(BIN)/python -m benchmarks.bot_scale --contacts 300
	$(BIN)/python -m benchmarks.ntf --subscriptions 3000

figures: $(READY) ## all benchmarks into docs/benchmarks.md, compared with before: QUICK=1, ONLY=name, CHECK=1 to compare only
	$(BIN)/python -m benchmarks.figures $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY)) $(if $(CHECK),--check)

pipeline-long: $(READY) ## kill the driver, an executor and a follower at every point; more examples
	BLINDPOST_PIPELINE_LONG=1 $(BIN)/python -m pytest -q tests/pipeline

bench-pipeline: $(READY) ## the pipeline beside DuckDB and Polars, up to a million rows
	$(BIN)/blindpost pipeline bench --rows 1e5 --rows 1e6

bench-pipeline-1e8: $(READY) ## the same with a hundred million rows
	$(BIN)/blindpost pipeline bench --rows 1e8 --job audit --job meters --repeat 2 --folder build/bench --file build/bench-1e8.json

LOCK := $(VENV)-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-annotate --upgrade

lock: ## renew requirements.lock from pyproject.toml, and pip.lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet uv
	$(LOCK) --extra dev --extra all -o requirements.lock pyproject.toml
	echo pip | $(LOCK) -o pip.lock -
	rm -rf $(VENV)-lock

clean: ## remove everything that the other targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
