# Every target sets up what it lacks first. Nothing outside this folder is changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
UV_VERSION := 0.13.8
PYTHON ?= python3.11
UV := .tools/bin/uv
STAMP := .venv/.synced
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH"

# nvcc reached through a link or wrapper outside its toolkit misleads Horovod's CMake: ask nvcc for its root.
CUDA_ROOT = $(shell nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^.. TOP=//p' | xargs -r realpath)

$(UV):
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet uv==$(UV_VERSION)

$(STAMP): requirements.txt pyproject.toml setup/horovod-toolchain.cmake setup/horovod-cxx17.cmake | $(UV)
	@echo "== environment: about 2 minutes the first time (Horovod is compiled) =="
	test -x .venv/bin/python || $(UV) venv --quiet --python $(PYTHON) .venv
	CMAKE_TOOLCHAIN_FILE="$(CURDIR)/setup/horovod-toolchain.cmake" \
	$(if $(CUDA_ROOT),CUDA_HOME="$(CUDA_ROOT)" HOROVOD_CUDA_HOME="$(CUDA_ROOT)") \
	VIRTUAL_ENV="$(CURDIR)/.venv" $(UV) pip sync --compile-bytecode --require-hashes requirements.txt
	touch $@

.PHONY: help reproduce test check lint bench reference env

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' Makefile | expand -t 20

reproduce: $(STAMP) ## every table and figure at the scale of this machine (config/quick.yaml)
	$(RUN) snakemake

test: $(STAMP) ## the tests
	$(RUN) python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder tests

check: lint test ## the linters, the tests, and the smoke configuration end to end with the paper's methods
	$(RUN) snakemake --configfile config/smoke.yaml --config 'methods=[none, topk, lags, lags_adaptive, dlgs]'

lint: $(STAMP) ## ruff, snakefmt, snakemake --lint
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) snakefmt --check Snakefile workflow
	$(RUN) snakemake --lint

bench: $(STAMP) ## what tests measure of each method; speeds, as ratios within one run
	$(RUN) python bench/properties.py results/bench
	$(RUN) python bench/selection.py results/bench
	$(RUN) python bench/blocks.py results/bench
	$(RUN) python bench/exchanges.py results/bench
	$(RUN) python bench/input.py results/bench
	$(RUN) python bench/iteration.py results/bench
	$(RUN) python bench/hooks.py results/bench

reference: ## keep the results as the reference set, and show its tables in the README
	$(RUN) python workflow/scripts/reference.py

env: $(STAMP) ## set up .venv: torch, torchvision, horovod (compiled), snakemake
