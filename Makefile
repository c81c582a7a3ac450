# `make serve` and `make test` do all the set-up they need on a machine that has Python 3.11,
# make and, for the compiled hot path, a C compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src/twinbus -type f -not -path '*/__pycache__/*') pyproject.toml setup.py
STAMPS := .stamps
# Most tests wait for a broker rather than compute; tests/conftest.py says which stay together,
# and puts the longest first. Apart are those of pairing (many of a file run at once, against
# time-outs that a busy machine breaks: two workers are enough), those in a browser (whose driver
# keeps an event loop running), and those on Spark and of the simulation (which take both cores).
TIER := not slow and not long
TEST = $(BIN)/python -m pytest -m "$(TIER)"
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
APART := tests/pairing tests/browser tests/spark tests/sim

.DEFAULT_GOAL := help

.PHONY: help
help: ## Say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: serve
serve: setup ## Run the broker on ./twinbus-data and print the connection string
	$(BIN)/twinbus serve

.PHONY: test
test: setup js $(STAMPS)/spark.jsa ## Run the tests but for the slow ones, in ten minutes
	$(TEST) $(PARALLEL) $(APART:%=--ignore %)
	$(TEST) $(PARALLEL) -n 2 tests/pairing
	$(TEST) $(PARALLEL) tests/browser
	$(TEST) $(PARALLEL) -n 2 tests/spark
	$(TEST) -n 2 tests/sim

.PHONY: test-all
test-all: ## Run the slow tests too, and those of the hot path interpreted as well: what CI runs
	$(MAKE) test TIER="not long"
	TWINBUS_FORM=interpreted $(BIN)/python -m pytest -m "not long" $(PARALLEL) \
		-o pythonpath="src ." tests/unit tests/model tests/vectors tests/compat/test_proton.py

.PHONY: test-long
test-long: setup js $(STAMPS)/spark.jsa ## Run the longer forms of the tests as well
	$(BIN)/python -m pytest $(APART:%=--ignore %)
	for tests in $(APART); do $(BIN)/python -m pytest $$tests || exit 1; done

.PHONY: check
check: setup ## Lint, format, types, layers, dependencies
	$(BIN)/ruff check src tests bench fuzz tools examples setup.py
	$(BIN)/ruff format --check src tests bench fuzz tools examples setup.py
	$(BIN)/mypy
	MYPYPATH=src $(BIN)/mypy --explicit-package-bases --follow-imports silent fuzz tools examples
	$(BIN)/lint-imports
	$(BIN)/python tools/async_to_sync.py --check
	$(BIN)/python tools/audit.py

.PHONY: bench
bench: setup ## Measure against RabbitMQ and the raw disk
	$(BIN)/python -m bench

.PHONY: sim
sim: setup ## Simulate brokers, networks and disks (SEEDS=n how many), find planted bugs; SEED=n replays one
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) --jobs 2)
	$(if $(SEED),,$(BIN)/python -m pytest -q -n 2 tests/sim -k planted)

.PHONY: fuzz
fuzz: setup ## Fuzz every reader of strangers' bytes, SECONDS of processor time each
	$(BIN)/python -m fuzz.run all --seconds $(or $(SECONDS),10) --jobs 2

.PHONY: demo
demo: setup ## Two brokers, one of them killed: see paired namespaces at work
	$(BIN)/python examples/demo.py

.PHONY: format
format: setup ## Format the code
	$(BIN)/ruff format src tests bench fuzz tools examples setup.py
	$(BIN)/ruff check --fix src tests bench fuzz tools examples setup.py

.PHONY: lock
lock: setup ## Resolve the dependencies anew
	$(BIN)/uv pip compile -q --upgrade --generate-hashes --extra dev --no-emit-package twinbus \
		pyproject.toml -o requirements.lock

.PHONY: setup
setup: $(STAMPS)/installed ## Make the environment (.venv) and compile the hot path

# Compiled to bytecode at once: where PYTHONDONTWRITEBYTECODE is set, as in many containers, every
# process would compile all that it imports anew, and the tests start hundreds.
$(STAMPS)/environment: requirements.lock
	@mkdir -p $(STAMPS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check \
		"$$(grep -o '^uv==[^ ]*' requirements.lock)"
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python \
		--require-hashes -r requirements.lock
	@touch $@

# The package is installed, not linked: the installed one is compiled, `src` is not. A stale
# build directory would ship old code, so it goes first.
$(STAMPS)/installed: $(STAMPS)/environment $(SOURCES)
	rm -rf build/lib* build/temp* build/bdist*
	$(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python \
		--no-deps --no-build-isolation --reinstall .
	@$(BIN)/python tools/installed_form.py
	@touch $@

.PHONY: js
js: $(STAMPS)/js

$(STAMPS)/js: tests/compat/js/package-lock.json $(STAMPS)/environment
	$(BIN)/python -m tests.support.node
	@touch $@

# Sessions start in half the time with it. A Java that cannot make one leaves an empty file,
# which every JVM passes over.
$(STAMPS)/spark.jsa: $(STAMPS)/environment | setup
	$(BIN)/python -m tests.support.spark_archive
	@touch $@

.PHONY: clean
clean: ## Remove everything that was made
	rm -rf $(VENV) $(STAMPS) build dist src/*.egg-info tests/compat/js/node_modules artifacts
