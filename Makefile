# The menu of the project. `make` alone prints it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# VENV=/path/to/env uses an environment you built yourself; then nothing is installed.
VENV ?= .venv
PY := $(VENV)/bin/python
MODEL ?= smollm2-135m
PYTEST_ARGS ?=
LARGE_MODES := fp32 fp16 bf16 w8 w8a8 w4-g32z w4-g128 w4-g128z q8_0 q6_k q4_0 q4_1 q4_k

.PHONY: help bootstrap demo test large large-modes lint format golden golden-check lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

bootstrap: ## build .venv from the lock and install the emulators (every other target does this first)
	@[ "$(VENV)" != .venv ] || ci/bootstrap

demo: bootstrap ## compile MODEL, check it against PyTorch on every target, generate, time, write the page
	$(VENV)/bin/assay validate --model $(MODEL) --profile demo

test: bootstrap ## the whole test suite on all cores; PYTEST_ARGS="-k rms_norm" narrows it
	$(PY) -m pytest -n auto $(PYTEST_ARGS)

large: bootstrap ## LLaMA-2-7B whole in w4-g32: tokens verified by PyTorch, memory as planned, speed
	$(VENV)/bin/assay bench model --model llama-2-7b --quant w4-g32 --live --no-layers

large-modes: bootstrap ## two layers of LLaMA-2-7B in every other mode, verified by PyTorch
	$(VENV)/bin/assay tokens --model llama-2-7b --depth 2 --new-tokens 32 $(addprefix --quant ,$(LARGE_MODES))

lint: bootstrap ## format, lint, types, import contracts, module sizes, self-containedness
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports --no-cache
	$(PY) ci/size_report.py
	$(PY) ci/self_contained.py
	$(VENV)/bin/pyright --pythonpath $(PY)

format: bootstrap ## rewrite the sources as `make lint` wants them
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

golden: bootstrap ## recompute the stored goldens; fails if a number moved
	$(PY) golden/regenerate.py

golden-check: bootstrap ## the same comparison, writing nothing
	$(PY) golden/regenerate.py --check

lock: bootstrap ## rebuild requirements.lock from pyproject.toml
	$(PY) ci/lock.py

clean: ## remove the environment and everything that was generated
	rm -rf $(VENV) .venv.lock runs .pytest_cache .hypothesis .ruff_cache
