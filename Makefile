PYTEST := .venv/bin/python -m pytest -n 3 --dist loadgroup
SOURCES := $(wildcard src tests examples benchmarks)

# Tests start hundreds of processes: without bytecode each compiles the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test lint bench soak docs screenshots lock clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: .venv/installed ## a day of orders through a pipeline that is killed half way; or INPUT=folder ID=column
	scripts/debian java
	@.venv/bin/python -m examples.day $(if $(INPUT),--input "$(INPUT)") $(if $(ID),--id "$(ID)")

test: lint ## lint, then every test but the soak tests
	scripts/debian java postgres postgresql.jar redis-server chromium
	$(PYTEST)

lint: .venv/installed ## ruff, mypy --strict and the layers
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(SOURCES)
	.venv/bin/lint-imports

bench: .venv/installed ## the benchmarks
	@if [ -d benchmarks ]; then .venv/bin/python -m benchmarks; else echo "There are no benchmarks yet."; fi

mutants: .venv/installed ## take out one guard after the other: the test of each must fail
	.venv/bin/python -m tests.guards

soak: .venv/installed mutants ## every test, soak tests too, with larger counts (hours)
	scripts/debian java postgres postgresql.jar redis-server chromium
	ONCELOG_SOAK=1 ONCELOG_TEST_LIMIT_S=14400 $(PYTEST) -m "" -o faulthandler_timeout=30000

docs: .venv/installed ## the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet
	@echo "open build/site/index.html; to search it: .venv/bin/python -m http.server -d build/site, then http://localhost:8000"

screenshots: .venv/installed ## every page of the console, light and dark, in build/screenshots
	scripts/debian chromium
	.venv/bin/python -m scripts.screenshots

lock: .venv/installed ## bring requirements/dev.lock in line with pyproject.toml, keeping the pins that still fit
	.venv/bin/uv pip compile pyproject.toml --group dev --extra all --output-file requirements/dev.lock --quiet \
		--universal --python-version 3.11 --generate-hashes --no-config --custom-compile-command "make lock" \
		$(if $(UPGRADE),--upgrade)

clean: ## remove .venv and everything else that is made from the sources
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: requirements/dev.lock pyproject.toml scripts/install
	scripts/install
	@touch $@
