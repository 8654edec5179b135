# Every target sets up what it needs; nothing has to be installed by hand but Python 3.11+ and git.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=

.PHONY: help install console docs up test test-all test-loaded thorough floors chaos coverage check audit format generate lock wheel release bench steps parity clean
help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed 's/:.*## /\t/' | sort

install: $(STAMP) ## set up the virtual environment and the console (quick when nothing changed)
	@$(BIN)/python -m scripts.javascript build

$(STAMP): requirements.lock pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" sh scripts/setup

console: $(STAMP) ## build the console and the executor of JavaScript graphs, or say what is missing
	@$(BIN)/python -m scripts.javascript build --strict

docs: $(STAMP) ## build the documentation's site, which the platform serves at /help/
	@$(BIN)/python -m scripts.docs_site build --strict

up: install ## start the platform (make up ARGS="--port 9000")
	@$(BIN)/python -m scripts.docs_site build
	@exec $(BIN)/portside up $(ARGS)

test: install ## run the tests (make test ARGS="-k name": those that match, in one process, with their output)
	@sh scripts/test $(ARGS)

test-all: test ## run the tests, and the costlier forms of them that continuous integration runs too
	@sh scripts/test --all -m "extended and not thorough"

test-loaded: install ## run the tests beside eight busy processes (LOAD=16 for more)
	@sh scripts/test-loaded $(ARGS)

thorough: install ## run all long proofs: slow tests, floors and chaos (make thorough PARTS="slow executors lowest highest chaos", ARGS=--lf)
	@PARTS="$(PARTS)" sh scripts/thorough $(ARGS)

floors: $(STAMP) ## run the agent server's tests with the oldest and newest libraries (make floors ARGS=lowest)
	@$(BIN)/python scripts/floors.py $(ARGS)

chaos: $(STAMP) ## break servers under load for some minutes (CHAOS_SECONDS, CHAOS_SEED; LEAK_RUNS)
	@CHAOS_SECONDS="$${CHAOS_SECONDS:-300}" LEAK_RUNS="$${LEAK_RUNS:-2000}" \
		sh scripts/test -m "not thorough" tests/failure/test_engine_chaos.py tests/failure/test_engine_leaks.py

coverage: install ## run the tests and show what none of them executes (make coverage ARGS="-k name")
	@$(BIN)/python scripts/measure_coverage.py $(ARGS)

check: $(STAMP) ## the gate: format, lint, types, imports, budgets, generated files, workflows, audit
	@sh scripts/check

audit: $(STAMP) ## search the advisories for known vulnerabilities of pinned dependencies
	@$(BIN)/python scripts/audit.py

format: $(STAMP) ## format the code
	@$(BIN)/ruff format -q . && $(BIN)/ruff check -q --fix .
	@$(BIN)/python -m scripts.javascript format

generate: $(STAMP) ## write docs/reference/ and the revisions of SQL functions
	@$(BIN)/python scripts/generate.py

lock: $(STAMP) ## resolve the dependencies into requirements.lock
	@sh scripts/lock $(ARGS)

wheel: install docs ## build the wheel that people install, into dist/
	@$(BIN)/python -m uv build --wheel --build-constraints requirements.lock --require-hashes --out-dir dist

release: install ## make a release: files in dist/VERSION, a commit and a tag (make release VERSION=0.2.0 ARGS=--dry-run)
	@$(BIN)/python scripts/release.py "$(VERSION)" $(ARGS)

bench: $(STAMP) ## measure; prints figures without a verdict
	@sh scripts/bench $(ARGS)

steps: $(STAMP) ## count the functions and files that a streamed run enters before its first token (make steps ARGS=--list)
	@$(BIN)/python scripts/steps.py $(ARGS)

parity: $(STAMP) ## compare with the reference server; writes docs/parity.md (make parity ARGS="--recorded")
	@sh scripts/parity $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .coverage console/node_modules src/portside/console/help src/portside/console/static executor-js/node_modules src/portside/executor_js
