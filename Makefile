# Every target works in a fresh clone: it creates .venv (scripts/venv.sh) and checks Java (scripts/java.sh) first.

VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
SCALE ?= 1

.DEFAULT_GOAL := help
.PHONY: help run test test-slow lint bench docs java clean

help:
	@echo "make run        a short PySpark pipeline on TPC-H data, Volley next to Spark   (SCALE=1)"
	@echo "make test       lint, then the test suite"
	@echo "make test-slow  the long suites too"
	@echo "make lint       ruff and mypy"
	@echo "make bench      the 22 TPC-H queries: Volley, Spark and DataFusion              (SCALE=1)"
	@echo "make docs       write the generated pages of docs/ anew"
	@echo "make clean      remove the environment and everything that tools left"

$(READY): pyproject.toml scripts/venv.sh
	@scripts/venv.sh $(VENV)
	@touch $@

java:
	@scripts/java.sh

run: $(READY) java
	@$(BIN)/volley demo --scale $(SCALE)

test: lint java
	$(BIN)/pytest

test-slow: lint java
	$(BIN)/pytest -m "slow or not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) java
	$(BIN)/volley bench tpch --scale $(SCALE) --check --json bench-tpch-$(SCALE).json

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find src tests docs examples -name __pycache__ -type d -prune -exec rm -rf {} +
