# Everything a contributor or a newcomer does; CI runs the same targets.
SHELL := /bin/bash
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := uv pip compile -q --generate-hashes --no-emit-index-url --no-header --python-version 3.11
# torch and what comes with it: the base image of the trainer has them.
TORCH = $(shell grep -oE '^(torch|triton|nvidia[a-z0-9-]*|cuda[a-z-]*|sympy|mpmath|networkx|jinja2|markupsafe|setuptools)==' requirements/trainer.txt | tr -d =)

.PHONY: help setup lock generate lint types unit chart apiserver cluster elastic test demo clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

demo: setup  ## train the example on a Kubernetes cluster (KUBECONFIG's, or one started on this machine)
	$(BIN)/python -m tests.cluster.demo

test: setup lint types unit chart apiserver cluster  ## run every check and test
	@echo "all checks and tests passed"

setup: $(VENV)/.ready  ## make the virtual environment from the pinned requirements

$(VENV)/.ready: requirements/dev.txt requirements/trainer.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/trainer.txt
	touch $@

lock:  ## pin the requirements anew, with hashes
	$(LOCK) --extra operator --extra local --group dev pyproject.toml -o requirements/dev.txt
	$(LOCK) --extra operator pyproject.toml -o requirements/operator.txt
	echo 'hatchling>=1.27' | $(LOCK) - -o requirements/build.txt  # what builds the wheels in the images
	$(LOCK) --extra accelerate trainer_image/pyproject.toml -o requirements/trainer.txt
	$(LOCK) --extra accelerate trainer_image/pyproject.toml $(addprefix --no-emit-package ,$(TORCH)) -o requirements/trainer-image.txt

generate: setup  ## write what is generated from the models: the CRD, the chart's copy of it, docs/api.md
	PYTHONPATH=operator $(BIN)/python -m elastrain crd > crds/elastrain.dev_trainjobs.yaml
	cp crds/elastrain.dev_trainjobs.yaml charts/elastrain/files/trainjobs.elastrain.dev.yaml
	PYTHONPATH=operator $(BIN)/python -m elastrain.api.reference > docs/api.md

lint: setup  ## ruff and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=operator:trainer_image $(BIN)/lint-imports --no-cache

types: setup  ## mypy, strict
	$(BIN)/mypy

unit: setup  ## fast tests, no cluster
	$(BIN)/pytest tests/unit tests/property tests/faults tests/agent tests/local

chart: setup  ## the chart, linted and rendered
	$(BIN)/pytest tests/chart

apiserver: setup  ## the CRD, the operator and the chart on a real API server
	$(BIN)/pytest tests/apiserver

cluster: setup  ## images, chart and jobs on a real cluster of three nodes (or the one that KUBECONFIG names)
	$(BIN)/pytest tests/cluster -m "not long"

elastic: setup  ## everything that may happen to a job while it trains, on the same cluster; half an hour
	$(BIN)/pytest tests/cluster/test_elastic.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
