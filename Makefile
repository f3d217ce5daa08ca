# Every target sets up what it needs in .venv, from the package index alone.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE = 1

.PHONY: help demo test check bench eval-quick format clean

help:           ## list the targets
	@grep -E '^[a-z-]+: *.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test,check]'
	@touch $@

demo: $(READY)  ## a sloppy story, and the same without its slop
	@$(BIN)/antislop generate --compare --show --seed 1 "The old house at the edge of the village"

test: $(READY)  ## run the tests; ANTISLOP_TEST_DEPTH=10 looks ten times deeper
	$(BIN)/python -m pytest -n auto

check: $(READY) ## lint, strict types, README examples: with test, all that CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_readme.py tests/test_layout.py

bench: $(READY) ## speed against plain generate; see benchmarks/README.md
	$(BIN)/python benchmarks/speed.py

eval-quick: $(READY) ## the questions of eval/, small: under 10 minutes
	$(BIN)/python eval/quick.py $(EVAL)

format: $(READY) ## format and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:          ## remove what was made here
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
