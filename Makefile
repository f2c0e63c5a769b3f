# Every target sets up what it lacks first. Outside this folder, only the caches of uv and pip are changed.
SHELL := /bin/bash
.DEFAULT_GOAL := help
UV_VERSION := 0.13.8
PYTHON ?= python3.11
UV := .tools/bin/uv
# Two stages: targets that do not use Horovod do not wait for its compilation.
BASE := .venv/.synced
HOROVOD := .venv/.horovod
RUN := PATH="$(CURDIR)/.venv/bin:$$PATH"
SITE := NO_MKDOCS_2_WARNING=1 mkdocs build --strict
# Without restarts: pytest-xdist 3 waits for ever for a worker that was restarted after a crash.
PYTEST := python -m pytest -q -n auto --dist loadfile --max-worker-restart 0
# Tests and runs start many processes; without its cache, each of them compiles all files of the project again.
unexport PYTHONDONTWRITEBYTECODE

# nvcc reached through a link or wrapper outside its toolkit misleads Horovod's CMake: ask nvcc for its root.
CUDA_ROOT = $(shell nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^.. TOP=//p' | xargs -r realpath)
BUILD = CMAKE_TOOLCHAIN_FILE="$(CURDIR)/setup/horovod-toolchain.cmake" \
	$(if $(CUDA_ROOT),CUDA_HOME="$(CUDA_ROOT)" HOROVOD_CUDA_HOME="$(CUDA_ROOT)")
SYNC = VIRTUAL_ENV="$(CURDIR)/.venv" $(BUILD) setup/progress.sh \
	$(UV) pip sync --compile-bytecode --require-hashes
TORCH = $(shell grep -o '^torch==[^ ]*' requirements.txt)

$(UV):
	$(PYTHON) -m venv .tools
	setup/progress.sh .tools/bin/pip install --quiet uv==$(UV_VERSION)

# Horovod stays installed if it was compiled against the torch that is listed; else the sync uninstalls it.
$(BASE): requirements.txt pyproject.toml setup/dlgs-bench | $(UV)
	@echo "== environment, without Horovod: downloads 3 GB the first time =="
	test -x .venv/bin/python || $(UV) venv --quiet --python $(PYTHON) .venv
	@if grep -qsxF "$(TORCH)" $(HOROVOD); then cat requirements.txt; \
	else sed '/^horovod==/,/[^\\]$$/d' requirements.txt; fi | $(SYNC) -
	install setup/dlgs-bench .venv/bin/
	touch $@

$(HOROVOD): $(BASE)
	@echo "== Horovod: compiled if it is missing, about 2 minutes on 2 cores =="
	@$(SYNC) requirements.txt
	$(RUN) python -c "import horovod.torch"
	echo "$(TORCH)" > $@

.NOTPARALLEL:
.PHONY: help reproduce test test-rest smoke check lint docs schema bench gpu reference results-page
.PHONY: env env-without-horovod

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 28

reproduce: $(BASE) ## every table and figure at the scale of this machine (config/quick.yaml)
	$(RUN) snakemake

# If Horovod was installed before, it stays installed.
test: $(if $(wildcard $(HOROVOD)),$(HOROVOD),$(BASE)) ## the fast tests; tests that need Horovod are skipped without it
	$(RUN) $(PYTEST) -m "not slow and not root" tests
	@test -e $(HOROVOD) || echo "Tests that need Horovod were skipped: it is not installed. To install it: make env"

test-rest: $(HOROVOD) ## the slow tests, the tests that need root, and the property tests with more examples
	$(RUN) $(PYTEST) --hypothesis-profile=thorough -m "slow or root or hypothesis" tests

smoke: $(HOROVOD) ## the smoke configuration end to end with the paper's methods
	$(RUN) snakemake --configfile config/smoke.yaml --config 'methods=[none, topk, lags, lags_adaptive, dlgs]'

check: env lint test smoke test-rest ## all linters, all tests and the smoke configuration, with Horovod

lint: $(BASE) ## ruff, snakefmt, mypy, snakemake --lint, and the links of the documents
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) snakefmt --check Snakefile workflow
	$(RUN) mypy --cache-dir .cache/mypy
	$(RUN) snakemake --lint
	$(RUN) $(SITE)

docs: $(BASE) ## build the documents as a site, and check all links: .cache/site/README.html
	$(RUN) $(SITE)

schema: $(BASE) ## write config/schema.json, with which editors complete configurations
	$(RUN) python setup/reference_pages.py

bench: $(HOROVOD) ## measured properties of each method, and speeds as ratios within one run
	$(RUN) python bench/properties.py results/bench
	$(RUN) python bench/selection.py results/bench
	$(RUN) python bench/blocks.py results/bench
	$(RUN) python bench/codes.py results/bench
	$(RUN) python bench/block_sizes.py results/bench
	$(RUN) python bench/lossless.py results/bench
	$(RUN) python bench/exchanges.py results/bench
	$(RUN) python bench/input.py results/bench
	$(RUN) python bench/iteration.py results/bench
	$(RUN) python bench/hooks.py results/bench
	$(RUN) python bench/field.py results/reference-field

# Without CIFAR-10, for example without a network, everything but training runs.
gpu: $(BASE) ## everything that needs a GPU, in ten minutes: results/gpu.tar.gz
	-test -e data/cifar10.npz || $(RUN) python -m dlgs_bench.data.fetch data/cifar10.npz
	$(RUN) python bench/gpu.py results/gpu

reference: ## keep the current results as the reference set, and update the answers in the README
	$(RUN) python workflow/scripts/reference.py

results-page: $(BASE) ## write what is made from kept sets: results/index.html, and the accuracies in dlgs-bench advise
	$(RUN) python setup/results_page.py
	$(RUN) python setup/trained.py

env: $(HOROVOD) ## set up .venv: torch, torchvision, snakemake, Horovod (compiled)

env-without-horovod: $(BASE) ## set up .venv without Horovod: enough for engine: torch_dist
