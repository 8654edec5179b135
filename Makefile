# Every target sets up what it needs; nothing has to be installed by hand but Python 3.11+ and git.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=

.PHONY: help install up test thorough chaos check audit format generate lock bench parity clean
help: ## show this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed 's/:.*## /\t/' | sort

install: $(STAMP) ## set up the virtual environment (quick when nothing changed)

$(STAMP): requirements.lock pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" sh scripts/setup

up: $(STAMP) ## start the platform (make up ARGS="--port 9000")
	@exec $(BIN)/portside up $(ARGS)

test: $(STAMP) ## run the tests
	@sh scripts/test $(ARGS)

thorough: $(STAMP) ## run the tests that take long for what more they tell
	@sh scripts/test -m thorough $(ARGS)

chaos: $(STAMP) ## break servers under load for some minutes (CHAOS_SECONDS, CHAOS_SEED; LEAK_RUNS)
	@CHAOS_SECONDS="$${CHAOS_SECONDS:-300}" LEAK_RUNS="$${LEAK_RUNS:-2000}" \
		sh scripts/test -n 0 -s tests/failure/test_engine_chaos.py tests/failure/test_engine_leaks.py

check: $(STAMP) ## the gate: format, lint, types, imports, budgets, generated files, audit
	@sh scripts/check

audit: $(STAMP) ## look whether a pinned dependency is known to be vulnerable
	@$(BIN)/python scripts/audit.py

format: $(STAMP) ## put the code into the house format
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .

generate: $(STAMP) ## write the generated reference pages anew
	@$(BIN)/python scripts/generate.py

lock: $(STAMP) ## resolve the dependencies anew into requirements.lock
	@sh scripts/lock $(ARGS)

bench: $(STAMP) ## measure; prints figures, judges nothing
	@sh scripts/bench $(ARGS)

parity: $(STAMP) ## compare with the reference server, which is installed apart (make parity ARGS="--recorded")
	@sh scripts/parity $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
