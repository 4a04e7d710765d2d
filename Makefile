# make demo    install, then quantise, serve and compare the small model
# make test    install, then lint, type check and run every test
# make nightly the emulated kernels under more schedules and at full sizes; records rows
#
# Both create .venv themselves. Variables: PYTHON (3.11), PYTHON312 (the second, small test run),
# TORCH_CPU_INDEX (asked for torch only where pip's own configuration has no CPU build), JOBS (test
# processes).

SHELL := /bin/bash
PYTHON ?= python3.11
PYTHON312 ?= $(firstword $(shell for p in python3.12 $(HOME)/.pyenv/versions/3.12*/bin/python3.12; \
	do "$$p" -c '' 2>/dev/null && echo "$$p"; done))
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

export PYTHON TORCH_CPU_INDEX
# Two spinning OpenMP threads on a busy machine are several times slower than one.
export OMP_NUM_THREADS ?= 1

BIN := .venv/bin
# An engine takes about 3 GB, so not more processes than four.
JOBS ?= $(shell n=$$(nproc); echo $$((n > 4 ? 4 : n)))
PYTEST := python -m pytest -q -n $(JOBS) --dist loadfile
# What runs without torch: the core, the command line, deployment and packaging.
TORCH_FREE := tests/core tests/cli tests/deploy tests/test_packaging.py tests/test_cold_import.py
# What else runs on Python 3.12 where a CPU build of torch is to be had for it.
WITH_TORCH := tests/ops tests/quant tests/simulator tests/support
# vLLM acts on an installed Triton, so that has an environment of its own. Other releases allocate
# registers differently; its interpreter needs NumPy 2.2.
TRITON := "triton==3.6.0" "numpy==2.2.*" "pytest>=9" "pytest-timeout>=2.3" "pytest-xdist>=3.8"
TOOLS_312 := "transformers>=5.19,<5.20" safetensors "onnx>=1.23,<1.24" "onnxruntime>=1.32,<1.33" "pytest>=9" "pytest-timeout>=2.3" "pytest-xdist>=3.8"

.NOTPARALLEL:
.PHONY: demo test nightly install install-dev lint test-312 test-triton clean

demo: install
	@$(BIN)/glm5-ascend demo

test: lint test-312 test-triton
	@echo "== tests"
	@$(BIN)/$(PYTEST) --durations=10

nightly: install-dev
	@$(BIN)/python -m tools.nightly --record

install:
	@tools/install.sh .venv cpu

install-dev:
	@tools/install.sh .venv cpu,dev

lint: install-dev
	@echo "== ruff, mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

ifeq ($(PYTHON312),)
test-312:
	@echo "== Python 3.12 not found: not tested on it (make PYTHON312=/path/to/python3.12)"
else
test-312:
	@PYTHON=$(PYTHON312) tools/install.sh .venv-312 torch? $(TOOLS_312)
	@if .venv-312/bin/python -c 'import torch' 2>/dev/null; then \
		echo "== tests on Python 3.12: everything but the engine"; \
		.venv-312/bin/$(PYTEST) -m "not engine and not slow" $(TORCH_FREE) $(WITH_TORCH); \
	else \
		echo "== tests on Python 3.12 without torch, of which no CPU build is at hand for it:" \
			"core, command line, deployment, packaging"; \
		.venv-312/bin/$(PYTEST) -m "not engine and not torch and not slow" $(TORCH_FREE); \
	fi
endif

ifeq ($(shell uname -m),x86_64)
test-triton:
	@tools/install.sh .venv-triton torch? $(TRITON)
	@if .venv-triton/bin/python -c 'import torch' 2>/dev/null; then \
		echo "== Triton kernels: interpreted, and compiled for sm_90a"; \
		TRITON_INTERPRET=1 .venv-triton/bin/$(PYTEST) tests/ops/triton; \
	else \
		echo "== Triton kernels not tested: no CPU build of torch is at hand"; \
	fi
else
test-triton:
	@echo "== Triton kernels not tested: their compiler is tried on x86_64 only"
endif

clean:
	rm -rf .venv .venv-312 .venv-triton build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
