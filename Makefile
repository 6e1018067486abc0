# The few verbs a developer needs. `make` alone lists them.
PYTHON ?= python3
BIN := .venv/bin
RUNS ?= runs.jsonl

.PHONY: help install develop serve test test-long test-faults test-hostile test-containers test-launchers test-hooks test-pages pictures has-python-of-launchers soak explore check fix docs client profiles evidence lock
help:  ## list the verbs
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/installed  ## make .venv from the lock file
.venv/installed: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shardwright needs Python 3.11 or newer, got " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m service.tools.warm_up
	@touch $@

develop: .venv/developed  ## make .venv with all that the tests need
.venv/developed: .venv/installed requirements-dev.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

serve: .venv/installed  ## migrate the database and serve (HOST=, PORT=)
	$(BIN)/python -m service $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT))

test: .venv/developed  ## the default test suite
	$(BIN)/python -m pytest

test-long: .venv/developed  ## the tests that the default suite has no time for
	$(BIN)/python -m pytest -m "long and not faults"

test-faults: .venv/developed  ## services and databases killed at random moments, and neighbours that attack (FAULT_TRIALS=, FAULT_SEED=, FAULT_TESTS=)
	$(if $(FAULT_TRIALS),FAULT_TRIALS=$(FAULT_TRIALS)) $(if $(FAULT_SEED),FAULT_SEED=$(FAULT_SEED)) $(BIN)/python -m pytest -m faults -n 1 $(FAULT_TESTS)

test-hostile: .venv/developed  ## what schemathesis makes of the OpenAPI document (HOSTILE_EXAMPLES=, HOSTILE_SEED=)
	$(if $(HOSTILE_EXAMPLES),HOSTILE_EXAMPLES=$(HOSTILE_EXAMPLES)) $(if $(HOSTILE_SEED),HOSTILE_SEED=$(HOSTILE_SEED)) $(BIN)/python -m pytest -m hostile -n 1 -rP

test-containers: .venv/developed  ## the image and docker-compose.yml on a real Docker engine
	$(BIN)/python -m pytest -m containers -n 0 -v

test-launchers: .venv/developed .venv-launchers/installed  ## launch configurations, read by the real frameworks
	$(BIN)/python -m pytest -m launchers -n 2 --dist loadgroup -rP

PYTHONS_OF_LAUNCHERS = $(PYTHON312) python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python
PYTHON_OF_LAUNCHERS = $(shell for python in $(PYTHONS_OF_LAUNCHERS); do \
    $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && echo $$python && break; done)
has-python-of-launchers:
	@test -n "$(PYTHON_OF_LAUNCHERS)"

.venv-launchers/installed: tests/launchers/requirements.txt tests/launchers/requirements-no-deps.txt
	@test -n "$(PYTHON_OF_LAUNCHERS)" || { echo "make test-launchers needs Python 3.12, which the frameworks need: install it, or name it with PYTHON312=" >&2; exit 1; }
	$(PYTHON_OF_LAUNCHERS) -m venv --clear .venv-launchers
	.venv-launchers/bin/python -m pip install -q --disable-pip-version-check -r tests/launchers/requirements.txt
	.venv-launchers/bin/python -m pip install -q --disable-pip-version-check --no-deps -r tests/launchers/requirements-no-deps.txt
	@touch $@

# Clients that contradict each other have an environment each. One that cannot be installed is told, and its tests
# are skipped by name.
CLIENTS_OF_HOOKS := kubernetes skypilot dstack torchx nemo_run mcp mlflow
test-hooks: .venv/developed $(CLIENTS_OF_HOOKS:%=build/hooks/%/installed)  ## hooks, asked by real schedulers and launchers
	$(BIN)/python -m pytest -m hooks -n 2 --dist loadfile -rPs tests/shardwright

build/hooks/%/installed: tests/shardwright/hooks/requirements/%.txt
	$(BIN)/uv venv -q --clear -p $(or $(PYTHON_OF_LAUNCHERS),$(PYTHON)) build/hooks/$*
	$(BIN)/uv pip install -q --compile-bytecode -p build/hooks/$*/bin/python -r $< && touch $@ || rm -r build/hooks/$*

test-pages: .venv/developed  ## the web pages in a real Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest -m pages -n 1 -rPs

pictures: .venv/developed  ## pictures of the web pages, for you to look at
	$(BIN)/python -m tests.pages.pictures

soak: .venv/developed  ## half an hour of mixed load: whether a service grows (MINUTES=)
	$(BIN)/python -m tests.benchmarks.soak $(if $(MINUTES),--minutes $(MINUTES))

explore: .venv/developed  ## the properties on examples that no run has drawn before
	$(BIN)/python -m pytest --hypothesis-profile=new -m hypothesis

check: .venv/developed  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fix: .venv/developed  ## apply what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/developed  ## rewrite what the documentation shows of code and answers
	$(BIN)/python -m tests.docs.update

client: .venv/developed  ## write the routes and documents of the client from the OpenAPI document
	$(BIN)/python -m tests.shardwright.generate

profiles: .venv/installed  ## fit the shipped profile to published runs (RUNS=file)
	$(BIN)/python -m service.tools.fit_profile --runs $(RUNS) --out models/data

evidence: .venv/installed  ## carry published runs over (RUNS=file)
	$(BIN)/python -m service.tools.carry_runs --runs $(RUNS) --out models/data/runs.jsonl

PROJECTS = pyproject.toml server/pyproject.toml
OWN = --no-emit-package shardwright --no-emit-package shardwright-server
lock: .venv/developed  ## resolve the lock files anew
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-header --no-annotate --generate-hashes --upgrade -q $(OWN) --extra otel --extra dask --group pyproject.toml:dev $(PROJECTS) -o requirements-dev.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -q $(OWN) $(PROJECTS) -c requirements-dev.lock -o requirements.lock
	$(BIN)/uv pip compile --universal --python-version 3.11 --no-header --no-annotate --generate-hashes -q $(OWN) --extra otel --extra dask $(PROJECTS) -c requirements-dev.lock -o requirements-extras.lock
	$(BIN)/uv pip compile --python-version 3.12 --no-header --no-annotate -q tests/launchers/requirements.in -o tests/launchers/requirements.txt
