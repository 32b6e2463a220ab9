# Two commands do everything on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The CPU build of torch. Where the default index serves CUDA builds only, pass TORCH_ARGS="--index-url <CPU wheels>".
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
# The testbed, in about three minutes. With SmolLM2, some seven: make quickstart SPEC=sweeps/smoke.yaml
SPEC ?= sweeps/quickstart.yaml

.PHONY: quickstart test test-slow lint docs ui assets env clean

quickstart: env  ## train an indexer, compare it with other methods, write the report
	$(BIN)/indexmem run $(SPEC)

# Much of the suite waits for processes of its own to start, so two tests at a time take two cores. With bytecode
# switched off, each of the hundred processes would compile the package, and each worker all the tests, once more.
test: export PYTHONDONTWRITEBYTECODE =
test: env  ## the whole suite but what takes minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-slow: env  ## the rest
	$(BIN)/python -m pytest -m slow

lint: env  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: env  ## the documentation as a site, in site/
	$(BIN)/python -m mkdocs build --strict

ui: env  ## MLflow at http://127.0.0.1:5000, and where the reports are
	$(BIN)/indexmem ui

assets: env  ## fetch and verify the built-in model and texts
	$(BIN)/indexmem assets

env: $(VENV)/.ready

# The marker is written last, so an interrupted installation is done again.
$(VENV)/.ready: pyproject.toml indexmem-testbed/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH_ARGS) "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable '.[test]' --editable ./indexmem-testbed
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
