# The project's commands. `make help` lists them.
VENV ?= .venv
PORT ?= 8000
DEMO_MODEL ?= qwen2.5-coder-0.5b
PYTEST ?=

python := $(VENV)/bin/python
pip := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-input

.PHONY: help demo test check format docs bench clean
.DEFAULT_GOAL := help

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo ## Bring the demo model, serve it on PORT (8000), ask it something; then a chat
	@$(python) scripts/demo.py --model $(DEMO_MODEL) --port $(PORT)

test: $(VENV)/.test ## Run all tests but the slow ones; PYTEST="-k name" picks some
	@scripts/test.sh $(python) $(PYTEST)

check: $(VENV)/.check ## Formatting, lint and types
	$(python) -m ruff format --check octavo tests scripts benchmarks
	$(python) -m ruff check octavo tests scripts benchmarks
	$(python) -m mypy

format: $(VENV)/.check ## Format, and mend what lint can mend
	$(python) -m ruff format octavo tests scripts benchmarks
	$(python) -m ruff check --fix octavo tests scripts benchmarks

docs: $(VENV)/.demo ## Write the pages that are made from code: flags, performance
	$(python) scripts/pages.py

bench: $(VENV)/.demo ## Measure the demo model; numbers go to benchmarks/results
	$(python) -m octavo bench throughput $(DEMO_MODEL)

clean: ## Remove the environment and all caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find octavo tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each stage installs only when its list of packages has changed.
$(VENV)/.made:
	@echo "Making a Python environment in $(VENV)"
	@scripts/find-python.sh > /dev/null
	@"$$(scripts/find-python.sh)" -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made requirements/demo.txt pyproject.toml
	@echo "Installing torch and the rest (about 200 MB with torch's CPU build, a minute or two)"
	@$(pip) -r requirements/demo.txt
	@$(pip) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.demo requirements/test.txt
	@echo "Installing what the tests need"
	@$(pip) -r requirements/test.txt
	@$(python) -c 'import triton' 2>/dev/null || $(pip) -r requirements/interpreter.txt
	@touch $@

$(VENV)/.check: $(VENV)/.test requirements/check.txt
	@echo "Installing what the checks need"
	@$(pip) -r requirements/check.txt
	@touch $@
