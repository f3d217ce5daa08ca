# Every target installs what it needs into .venv, from the package index alone.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/core
READY := .venv/ready
DOCS := .venv/docs
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE = 1

.PHONY: help demo test test-versions check docs package bench eval-quick format clean

help:           ## list the targets
	@grep -E '^[a-z-]+: *.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# PyPI's torch for Linux brings gigabytes of CUDA libraries. Without an NVIDIA GPU, PyTorch's own index is asked too,
# which has a build without them, if it answers in time. TORCH_INDEX=URL names another index, TORCH_INDEX= none.
CPU_INDEX := https://download.pytorch.org/whl/cpu
ANSWERS := timeout 10 $(PYTHON) -c "import urllib.request as r; r.urlopen('$(CPU_INDEX)/torch/', timeout=5)"
ifeq ($(origin TORCH_INDEX), undefined)
FIND_INDEX = if [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi > /dev/null && $(ANSWERS) 2> /dev/null; \
	then echo $(CPU_INDEX); fi
else
FIND_INDEX = echo $(TORCH_INDEX)
endif

$(CORE): pyproject.toml constraints.txt
	@echo "== step 1 of 3: make the virtual environment .venv"
	@$(PYTHON) -m venv .venv
	@echo "== step 2 of 3: install torch, 200 MB; with CUDA libraries 3 GB"
	@index=$$($(FIND_INDEX)); echo "   from $${index:-pip's own index}"; $(PIP) $${index:+--extra-index-url $$index} torch
	@echo "== step 3 of 3: install antislop and transformers, 70 MB"
	@$(PIP) -e .
	@touch $@

$(READY): $(CORE)
	@echo "== install what tests and checks need, 250 MB"
	@$(PIP) -e '.[test,check]'
	@touch $@

$(DOCS): $(CORE)
	@echo "== install what the site of docs/ needs"
	@$(PIP) -e '.[docs]'
	@touch $@

demo: $(CORE)   ## a story written twice: without bans, and with them
	@$(BIN)/antislop generate --compare --show --seed 1 "The old house at the edge of the village"

test: $(READY)  ## run the tests; ANTISLOP_TEST_DEPTH=10 runs the random ones ten times longer
	$(BIN)/python -m pytest -n auto --dist worksteal

test-versions: $(READY) ## the oldest transformers; Python 3.10 and 3.13 where they are installed
	bash .ci/versions

check: $(READY) ## lint, strict types, the README's examples
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_readme.py tests/test_layout.py

docs: $(DOCS)   ## build the site of docs/ into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: $(READY) ## build the wheel and the sdist, and try both in clean environments
	bash .ci/distributions

bench: $(READY) ## speed against plain generate; see eval/speed/README.md
	$(BIN)/python -m eval.speed

eval-quick: $(READY) ## the questions of eval/, small: under 10 minutes
	$(BIN)/python -m eval.quick $(EVAL)

format: $(READY) ## format the code and apply ruff's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:          ## remove everything that these targets made
	rm -rf .venv dist build site .mypy_cache .pytest_cache .ruff_cache .hypothesis
