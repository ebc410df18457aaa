# Afterrun: `make help` says what there is. Needs Python 3.11+ and make, nothing else.
#
#   PYTHON=python3.12        the interpreter to make the virtual environment with
#   PIP_ARGS="…"             passed to pip, for example --extra-index-url https://download.pytorch.org/whl/cpu
#   XDIST="…"                how the tests are spread over processes; empty: one after the other
#   PYTEST_ARGS="…"          passed to pytest, for example PYTEST_ARGS="-k recall"
#   DB=path/to/memory.db     the run store that `make demo` shows, as a copy

VENV ?= .venv
PYTHON ?= python3.13 python3.12 python3.11 python3
PIP_ARGS ?=
XDIST ?= -n logical --maxprocesses 4 --dist loadfile
PYTEST_ARGS ?=
DB ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet $(PIP_ARGS) -c constraints.txt

# Exits 0 for a Python that can be used, 1 for one that is too old or missing, 3 for one that cannot make environments.
CHECK_PYTHON := import sys; sys.version_info >= (3, 11) or sys.exit(1); \
	import importlib.util as u; sys.exit(0 if u.find_spec("venv") and u.find_spec("ensurepip") else 3)

.DEFAULT_GOAL := help
.PHONY: help install dev demo test test-slow test-all lint types clean

help:
	@echo 'make demo [DB=path/to/memory.db]  the whole way from finished runs to recalled memories, on this machine'
	@echo 'make test                         all tests but the slow ones'
	@echo 'make test-slow                    the tests marked slow, one after the other'
	@echo 'make test-all                     both'
	@echo 'make lint                         ruff, formatting, import contracts'
	@echo 'make types                        mypy, strict'
	@echo 'make install | dev                the virtual environment in $(VENV), without | with the developer tools'
	@echo 'make clean                        remove $(VENV), caches and build results'

install: $(INSTALLED)

dev: $(INSTALLED_DEV)

demo: $(INSTALLED)
	@$(BIN)/afterrun demo $(if $(DB),--db "$(DB)")

test: $(INSTALLED_DEV)
	@$(BIN)/python -m pytest -m 'not slow' $(XDIST) $(PYTEST_ARGS)

# One after the other: they measure, or take a whole core. pytest's exit code 5 says that none was selected.
test-slow: $(INSTALLED_DEV)
	@$(BIN)/python -m pytest -m slow $(PYTEST_ARGS) || { code=$$?; test $$code -eq 5 || exit $$code; \
		echo 'note: no test is marked slow, so none of them was run'; }

test-all: test test-slow

lint: $(INSTALLED_DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(INSTALLED_DEV)
	@$(BIN)/mypy

clean:
	rm -rf '$(VENV)' dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find core workers tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@found=; unable=; \
	for python in $(PYTHON); do \
		"$$python" -c '$(CHECK_PYTHON)' 2>/dev/null && { found=$$python; break; }; \
		test $$? -eq 3 && unable=$$python; \
	done; \
	if test -z "$$found" && test -n "$$unable"; then \
		echo "error: $$unable cannot make virtual environments: install its venv package" \
			"(Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; \
	elif test -z "$$found"; then \
		echo "error: none of $(PYTHON) is Python 3.11 or newer:" \
			"install one, or name it: make PYTHON=/path/to/python3.12 …" >&2; exit 1; \
	fi; \
	echo "Making the virtual environment $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv --clear '$(VENV)'

$(INSTALLED): pyproject.toml constraints.txt $(BIN)/python
	@echo 'Installing Afterrun into $(VENV): about 450 MB to download the first time, and some minutes …'
	@$(PIP) -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml constraints.txt $(BIN)/python
	@echo 'Installing Afterrun and its developer tools into $(VENV): about 500 MB to download the first time, and some minutes …'
	@$(PIP) -e '.[dev]'
	@touch '$(INSTALLED)' $@
