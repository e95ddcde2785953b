# Every target works in a fresh clone: it creates .venv (scripts/venv.sh) and checks Java (scripts/java.sh) first.

VENV := .venv
READY := $(VENV)/.ready
# Enough for `make run`, and much less to install.
CAN_RUN := $(VENV)/.can-run
BIN := $(VENV)/bin
SCALE ?= 1
SECONDS ?= 60
MINUTES ?= 5
SEED ?= 0
# A file to which `make chaos` adds what happened, such as docs/chaos.json.
JSON ?=
# Test processes. Each may have a Spark session and a cluster of its own.
JOBS ?= 2
# A file stays in one process, so that its tests share clusters and tables. tests/conftest.py has them in order.
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
TRANSPORTS ?= local flight spark
STORES ?= memory service object
# Releases of Spark, all that are tested by default, suites of scripts/test_versions.py, and one in how many of their tests.
VERSIONS ?=
SUITES ?=
SAMPLE ?= 1
# Another Python than that of .venv, and the home of another Java.
WITH_PYTHON ?=
WITH_JAVA ?=
MATRIX_SUITES := tests/api/test_tpch.py tests/lower

.DEFAULT_GOAL := help
.PHONY: help run test types suite test-fast test-slow test-matrix test-versions fuzz fuzz-listeners chaos soak mutations docstrings lint bench costs docs docs-functions docs-site java clean

help:
	@echo "make run          a short PySpark pipeline on TPC-H data, Volley next to Spark   (SCALE=1)"
	@echo "make test         lint and the test suite, in parallel                            (JOBS=2)"
	@echo "make suite        only the tests                                                  (JOBS=2)"
	@echo "make types        only mypy"
	@echo "make test-fast    only the tests that need no Spark"
	@echo "make test-slow    make test, then the long suites"
	@echo "make test-matrix  TPC-H, operators and expressions on every transport and store   (TRANSPORTS=flight STORES=service)"
	@echo "make test-versions  the suites with every tested release of Spark                 (VERSIONS=4.0 SUITES=tpch SAMPLE=1 WITH_PYTHON= WITH_JAVA=)"
	@echo "make fuzz         random programs against Spark; differences become tests        (SECONDS=60 SEED=0)"
	@echo "make fuzz-listeners  changed requests to each listener, for so long                (MINUTES=5 SEED=0)"
	@echo "make chaos        queries and writes under faults, compared with Spark              (MINUTES=5 SEED=0 JSON=)"
	@echo "make soak         a mixed load with faults; draws docs/images/soak.svg             (MINUTES=5 SEED=0)"
	@echo "make mutations    remove the code behind each invariant: its test must fail"
	@echo "make docstrings   PySpark's docstring examples: which run natively, and what blocks others"
	@echo "make lint         ruff and mypy"
	@echo "make bench        the 22 TPC-H queries: Volley, Spark and DataFusion              (SCALE=1)"
	@echo "make costs        write tests/helpers/tpch_costs.csv anew: what the TPC-H queries cost, in counts"
	@echo "make docs         write the generated pages of docs/ anew"
	@echo "make docs-site    the documentation site, in build/site"
	@echo "make docs-functions  docs/functions.md: where each function of Spark runs"
	@echo "make clean        remove the environment and everything that tools left"

$(READY): pyproject.toml scripts/venv.sh
	@scripts/venv.sh $(VENV) dev
	@touch $(CAN_RUN) $@

$(CAN_RUN): pyproject.toml scripts/venv.sh
	@scripts/venv.sh $(VENV) bench,pandas
	@touch $@

java:
	@scripts/java.sh

run: $(CAN_RUN) java
	@$(BIN)/volley demo --scale $(SCALE)

# mypy uses one core: the tests need not wait for it.
test: $(READY) java
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j 2 types suite

types: $(READY)
	$(BIN)/mypy

# What fails while processes compete for the cores must pass alone, where its waits and deadlines mean what they say.
suite: $(READY)
	$(BIN)/pytest $(PARALLEL) || $(BIN)/pytest --last-failed --last-failed-no-failures none

test-fast: $(READY)
	$(BIN)/pytest $(PARALLEL) -m "not spark and not slow"

# Kills and stops are aimed at moments of a query, so these have the machine to themselves.
test-slow: test
	$(BIN)/pytest -m slow

test-matrix: $(READY) java
	@set -e; for transport in $(TRANSPORTS); do for store in $(STORES); do \
		echo "transport $$transport, store $$store"; \
		$(BIN)/pytest -q $(PARALLEL) --transport $$transport --store $$store $(MATRIX_SUITES); \
	done; done

# Makes an environment for each release, and for WITH_PYTHON, under .venvs, and writes docs/versions.json, from which `make docs` makes a table.
test-versions: $(READY) java
	@$(BIN)/python scripts/test_versions.py --jobs $(JOBS) --sample $(SAMPLE) $(VERSIONS:%=--release %) $(SUITES:%=--suite %) \
		$(WITH_PYTHON:%=--python %) $(WITH_JAVA:%=--java-home %)
	@$(BIN)/python docs/generate.py

fuzz: $(READY) java
	@$(BIN)/python -m volley.testing.fuzz --seconds $(SECONDS) --seed $(SEED)

fuzz-listeners: $(READY) java
	FUZZ_MINUTES=$(MINUTES) FUZZ_SEED=$(SEED) $(BIN)/pytest -m slow -rP tests/rpc/test_listener_fuzz.py

chaos: $(READY) java
	@$(BIN)/python -m volley.testing.chaos --minutes $(MINUTES) --seed $(SEED) $(JSON:%=--json %)

# For an hour: make soak MINUTES=60
soak: $(READY) java
	@$(BIN)/python -m volley.testing.soak --minutes $(MINUTES) --seed $(SEED) --picture docs/images/soak.svg

# Removes the code behind each invariant of the control plane, and expects its test to fail.
mutations: $(READY)
	@$(BIN)/python scripts/mutations.py

docstrings: $(READY) java
	@$(BIN)/python -m volley.testing.docstrings

lint: $(READY) types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(READY) java
	$(BIN)/volley bench tpch --scale $(SCALE) --check --json bench-tpch-$(SCALE).json

costs: $(READY) java
	$(BIN)/pytest -q --record-costs -m "slow or not slow" -k test_rows_are_sparks tests/api/test_tpch.py tests/cluster/test_cluster_queries.py

docs: $(READY)
	$(BIN)/python docs/generate.py

# Offline, and strict: a link or anchor that leads nowhere is an error.
docs-site: $(READY) docs
	$(BIN)/mkdocs build --quiet --strict

docs-functions: $(READY)
	$(BIN)/python docs/functions.py

clean:
	rm -rf $(VENV) .venvs build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis fuzz-findings spark-warehouse metastore_db derby.log
	find src tests docs examples -name __pycache__ -type d -prune -exec rm -rf {} +
