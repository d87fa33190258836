# GNU make on Linux with Python 3.11-3.13. `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
GPU_JOBS ?= 16
ARGS ?=
IMAGE ?= cpu
PROOFS ?= cpu gpu server wheelhouse

# A bare version is the Python of the host for which a wheelhouse is made.
HOST_PYTHON := $(filter 3.11 3.12 3.13,$(PYTHON))
ifneq ($(HOST_PYTHON),)
override PYTHON := python3
endif

# PATH changes below: $(PYTHON) stays the caller's.
override PYTHON := $(shell command -v $(PYTHON) || echo $(PYTHON))

ifeq ($(strip $(VENV)),)
# All packages are there already. dvc.yaml's commands say `python`, so that has to be $(PYTHON).
BIN := $(CURDIR)/.dvc/tmp/bin
READY := python-on-path
else
BIN := $(if $(filter /%,$(VENV)),,$(CURDIR)/)$(VENV)/bin
# The name holds what was installed, so that an interrupted or outdated installation is done again.
READY := $(VENV)/.ready-$(shell cat pyproject.toml locks/*.lock | cksum | cut -d ' ' -f 1)
endif
export PATH := $(BIN):$(PATH)
export ARGS
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The locked packages, each by its hash: from the indexes that pip knows, or from a wheelhouse.
INSTALL = python locks/install.py
KERNELS = $(shell sed -n 's/^kernels: *//p' params.yaml)
FROM = $(if $(WHEELHOUSE),--no-index --find-links "$(WHEELHOUSE)")
comma := ,
# A wheelhouse without torch is for a host that has it.
TORCH_HERE = $(and $(WHEELHOUSE),$(if $(wildcard $(WHEELHOUSE)/torch-*.whl),,yes))

.DEFAULT_GOAL := help
.PHONY: help setup python-on-path repro verify build report publish ui docs test test-slow test-gpu campaign lint types lock pin \
	wheelhouse server docker-gpu docker-cpu docker-image docker-shell test-docker clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'Variables:'
	@echo '  ARGS=...      more arguments for the command behind a target: make test ARGS="-k softmax"'
	@echo '  JOBS=2        processes for the tests; JOBS= runs them in one, without pytest-xdist'
	@echo '  GPU_JOBS=16   the same for test-gpu: about 1.5 GB of GPU memory each'
	@echo '  PYTHON=...    the Python 3.11-3.13 to make .venv with; for wheelhouse a bare version: 3.12'
	@echo '  VENV=         no .venv: run with $$(PYTHON), which has all packages already'
	@echo '  IMAGE=cpu     the image of docker-shell and docker-image: cpu or gpu'
	@echo '  PROOFS=...    what test-docker proves, some of: cpu gpu server wheelhouse'
	@echo '  WHEELHOUSE=   setup: a folder to install from instead of an index'
	@echo '  TORCH=no      wheelhouse: leave out torch'
	@echo '  UPGRADE=1     lock: move every pin to its newest version'

setup: $(READY) ## Make .venv with the locked packages (and the CUDA compiler if there is none)

$(VENV)/.ready-%:
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo 'error: $(PYTHON) is not there: install Python 3.11-3.13 or name one, make PYTHON=...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo 'error: $(PYTHON) is not Python 3.11-3.13: name one that is, make PYTHON=...' >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'error: $(PYTHON) has no venv module: install it (apt-get install python3-venv)' >&2; exit 1; }
	@rm -f "$(VENV)"/.ready-*
	@"$(VENV)/bin/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(if $(TORCH_HERE),--system-site-packages) "$(VENV)"
	@$(INSTALL) runtime dev $(if $(TORCH_HERE),,torch) $(FROM)
	@# This project itself, with what the lock brought: without an index and without build tools.
	@python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
	@# The pipeline's own search decides whether a CUDA compiler is there.
	@python -c 'from kernel_pipeline.machine.fingerprint import find_nvcc; find_nvcc()' 2>/dev/null || \
		$(INSTALL) nvcc $(FROM)
	@$(INSTALL) numba $(FROM) || echo 'note: Numba is not there: its providers are left out, its tests skipped'
	@python -c 'import pathlib, sysconfig as s; exit(not pathlib.Path(s.get_path("include"), "Python.h").exists())' || \
		echo 'note: Python.h is missing, torch.compile and Triton need it (apt-get install python3-dev)'
	@touch "$@"

# `make lock` alone: what conflicts with the old pins can't be installed before there are new ones.
$(BIN)/python:
	@"$(PYTHON)" -m venv "$(VENV)"

python-on-path:
	@mkdir -p "$(BIN)"
	@[ "$(PYTHON)" = "$(BIN)/python" ] || printf '#!/bin/sh\nexec "%s" "$$@"\n' "$(PYTHON)" >"$(BIN)/python"
	@chmod +x "$(BIN)/python"

repro: $(READY) ## Measure points without results, report and publish them (dvc repro), and print the table
	@python -m pipeline.repro $(ARGS)

verify: $(READY) ## Measure a sample of this machine's rows again, and print the share that is reproduced
	@python -m pipeline.verify $(ARGS)

build: $(READY) ## Compile the CUDA and C++ providers
	@python -m pipeline.build kernel=$(KERNELS) $(ARGS)

report: $(READY) ## Compare the GPUs in reports/ (on a CPU, this CPU in local/reports/ too) and print this machine's table
	@python -m pipeline.report $(ARGS)

publish: $(READY) ## Write all results, this host's local/ too, to MLflow
	@python -m pipeline.publish $(ARGS)

ui: $(READY) ## Publish every machine's results and open them in MLflow, until Ctrl-C
	@python -m pipeline.ui $(ARGS)

docs: $(READY) ## Build the documentation and the reports as a site, and check every link
	@python -m pipeline.docs check=true
	@NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict $(ARGS)
	@echo 'Open build/site/index.html, or serve it: python -m http.server --directory build/site'

# In tests/conftest.py's order: xdist's own begins with the groups of many tests, however short.
IN_GROUPS = --dist loadgroup --no-loadscope-reorder
PYTEST = python -m pytest --durations=10 $(if $(JOBS),-n $(JOBS) $(IN_GROUPS))
CUDA_KERNELS = $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard kernels/*/*.cu)))))

test: $(READY) ## Run the tests except slow tests and tests that need a GPU: minutes
	@$(PYTEST) -m 'not slow and not gpu' $(ARGS)

test-slow: $(READY) ## Run the slow tests: whole pipelines, kills, servers, browsers, compilers
	@$(PYTEST) -m 'slow and not gpu' $(ARGS)

# The libraries are built meanwhile, all at once: a test that needs one waits for it.
test-gpu: $(READY) ## Run tests/gpu, several processes on one GPU; ARGS="-m smoke": the first case of each
	@mkdir -p build
	@python -m pipeline.build kernel=$(subst $() ,$(comma),$(CUDA_KERNELS)) output=outputs >build/test-gpu.log 2>&1 & \
	python -m pytest tests/gpu -rs --durations=25 $(if $(GPU_JOBS),-n $(GPU_JOBS) $(IN_GROUPS)) $(ARGS); \
	code=$$?; wait; exit $$code

campaign: $(READY) ## Kill commands and fill disks at random, for minutes, and report losses and errors
	@python -m tests.campaign $(ARGS)

lint: $(READY) ## Check style: ruff, hadolint, shellcheck
	@python -m ruff check .
	@python -m ruff format --check .
	@hadolint docker/*.Dockerfile
	@shellcheck .ci/run ci/gate.sh locks/lock docker/pin docker/run docker/serve docker/server-entrypoint

types: $(READY) ## Check types: mypy
	@python -m mypy

lock: $(if $(strip $(VENV)),$(BIN)/python,python-on-path) ## Resolve constraints.txt and locks/ again, keeping pins where possible
	@$(INSTALL) resolver --quiet
	@locks/lock $(if $(UPGRADE),--upgrade)

pin: ## Write the base images' current digests from the registries into docker/
	@docker/pin

wheelhouse: $(READY) ## Collect the locked packages in wheelhouse/, for a host without a package index
	@python locks/wheelhouse.py wheelhouse $(if $(HOST_PYTHON),--python $(HOST_PYTHON)) \
		$(if $(filter no,$(TORCH)),--without-torch)

server: ## Start the team's tracking server of docker/compose.yaml
	@docker/serve

docker-gpu: ## Build the GPU image and run `make repro` in it on this checkout
	@docker/run gpu make repro "ARGS=$$ARGS"

docker-cpu: ## The same for a machine without a GPU
	@docker/run cpu make repro "ARGS=$$ARGS"

docker-image: ## Build an image with this commit's code, for a machine without a checkout
	@docker/run $(IMAGE)

docker-shell: ## Open a shell in an image on this checkout
	@docker/run $(IMAGE) bash

test-docker: $(READY) ## Build and run the images in PROOFS without a daemon and a registry, in minutes
	@TEST_PROOFS="$(PROOFS)" python -m pytest -rs tests/docker $(ARGS)

clean: ## Remove build outputs; results, local/, outputs/ and the MLflow store stay
	rm -rf build multirun .mypy_cache .pytest_cache .ruff_cache
