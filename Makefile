# make run    install into .venv and serve the dashboard on 127.0.0.1 (PORT=8501)
# make test   lint, types and all tests
PYTHON ?= python3
PORT ?= 8501
VENV := .venv
BIN := $(VENV)/bin
# Two processes suit two cores; each test process computes on one thread.
JOBS ?= 2

.PHONY: run install dev test lint types unit soak fuzz bench screenshots clean

run: install
	$(BIN)/python -m streamlit run app/server.py --server.port $(PORT)

install: $(VENV)/.installed

dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

test: lint types unit

lint: dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: dev
	$(BIN)/mypy

unit: dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

# Fine-tuning killed at 50 random moments; KILLS=200 for more.
KILLS ?= 50
soak: dev
	KRONOS_SOAK=$(KILLS) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/core/test_soak.py

bench: dev
	$(BIN)/python -m benchmarks.sampling
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.reading
	$(BIN)/python -m benchmarks.pages
	$(BIN)/python -m benchmarks.clicks

# Files damaged in 2000 ways; `make test` tries 200.
fuzz: dev
	KRONOS_FUZZ=2000 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/core/test_fuzz_reading.py

# The pictures of the README, taken from the browser tests' own run.
screenshots: dev
	KRONOS_SCREENSHOTS=docs/screenshots OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m browser tests/e2e

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
