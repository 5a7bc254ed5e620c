# make help says what there is. Everything runs in an environment of its own (VENV), made from pyproject.toml and
# constraints.txt when it is missing or older than they are. All paths are relative, so the folder's name may have spaces.
PYTHON ?= python3
VENV ?= .venv
RUN = $(VENV)/bin/python -m
INSTALL = $(RUN) pip install --disable-pip-version-check -c constraints.txt
PYTEST_OPTIONS ?= -n 2
DEMO ?= compare transformer-lm gpt2 llama2 --data stdlib --tokens 350k
CHECKED = src tests docs/site $(wildcard benchmarks) $(wildcard examples) $(wildcard tools)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo env test test-all test-gpu test-lowest test-newest hostile lint format bench catalogue notebooks site clean

help:  ## what there is
	@echo 'make demo      compare three architectures on real text, in a fresh environment (minutes)'
	@echo 'make test      lint, types and the tests, without the slow ones'
	@echo 'make test-all  the same with the slow ones; HOSTILE_SEED=n and HOSTILE_INPUTS=n repeat or bound the hostile inputs'
	@echo 'make test-gpu  what runs on a GPU: every preset, kernels, compiled steps, memory; where there is one'
	@echo 'make test-lowest, make test-newest: the tests of make test with the lowest and the newest versions that pyproject.toml admits'
	@echo 'make hostile   hostile inputs alone, and how much of the readers they reach'
	@echo 'make lint      ruff and pyright only'
	@echo 'make format    put the code into its one format'
	@echo 'make bench     the benchmarks, quick form'
	@echo 'make catalogue docs/catalogue.md, docs/history.md and the list of presets, from the specifications'
	@echo 'make notebooks examples/notebooks, run anew with what they print'
	@echo 'make site      the documentation as a site, in build/site'
	@echo 'make env       only the environment for developing ($(VENV))'
	@echo 'make clean     remove the environment and every cache'
	@echo
	@echo 'PYTHON=python3.12 chooses the interpreter, VENV=dir the environment, DEMO="compare …" what the demo runs.'

demo: $(VENV)/.installed
	$(RUN) anyformer $(DEMO)

env: $(VENV)/.installed-dev

test: lint
	$(RUN) pytest $(PYTEST_OPTIONS) -m "not slow and not gpu"

test-all: lint
	HYPOTHESIS_PROFILE=explore $(RUN) pytest $(PYTEST_OPTIONS) -m "not gpu"

test-gpu: $(VENV)/.installed-dev
	$(RUN) pytest -n 8 tests/gpu

# In environments of their own, without constraints.txt, which make test holds to.
test-lowest: RESOLUTION = lowest-direct
test-newest: RESOLUTION = highest
test-lowest test-newest: test-%:
	$(PYTHON) -m venv "$(VENV)-$*"
	"$(VENV)-$*/bin/python" -m pip install --disable-pip-version-check --quiet uv
	"$(VENV)-$*/bin/python" -m uv pip install --python "$(VENV)-$*/bin/python" --resolution $(RESOLUTION) --upgrade -e '.[test]'
	"$(VENV)-$*/bin/python" -m pytest $(PYTEST_OPTIONS) -m "not slow and not gpu"

hostile: $(VENV)/.installed-dev
	PYTHONPATH=src:. $(RUN) tests.hostile.covered
	PYTHONPATH=src:. $(RUN) tests.hostile.hunt --keep .hostile --inputs $${HOSTILE_INPUTS:-20000}

lint: $(VENV)/.installed-dev
	$(RUN) ruff check $(CHECKED)
	$(RUN) ruff format --check $(CHECKED)
	$(RUN) pyright --pythonpath $(VENV)/bin/python

format: $(VENV)/.installed-dev
	$(RUN) ruff check --fix $(CHECKED)
	$(RUN) ruff format $(CHECKED)

catalogue: $(VENV)/.installed-dev
	$(VENV)/bin/python tools/catalogue.py
	$(VENV)/bin/anyformer history --markdown > docs/history.md

notebooks: $(VENV)/.installed-dev
	$(INSTALL) -e '.[notebooks,verify]'
	$(VENV)/bin/python tools/notebooks.py

site: $(VENV)/.installed-docs
	PYTHONPATH=src $(RUN) sphinx -W --keep-going -q -b html -c docs/site . build/site
	@echo 'build/site/index.html'

bench: $(VENV)/.installed-dev
	for each in training classes generation decoding conversation moe blocked states depth tokenising curves; do $(RUN) benchmarks.$$each --quick || exit 1; done
	$(VENV)/bin/python tools/performance.py

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest .pytest_cache .ruff_cache .hypothesis .hostile build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] < (3, 14); sys.exit(None if ok else "anyformer needs Python 3.11 to 3.13, and this is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	$(INSTALL) -e '.[test,dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) -e '.[docs]'
	touch $@
