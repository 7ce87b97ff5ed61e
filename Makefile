# Every target works on a fresh clone with nothing but python3 and make: it builds .venv first, once.
# A change of pyproject.toml brings the environment up to date at the next call.

PYTHON ?= python3
OUT ?= out/demo
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check

# By its exact version, and before everything else: an open range would fetch the newest torch with all of CUDA.
TORCH := torch==2.13.0
TORCH_STAMP := $(VENV)/.$(subst ==,-,$(TORCH))

.PHONY: help demo check test fuzz references theory lint types bench readme release clean

help:
	@echo "make demo    what the package does, on bundled networks and pictures: one page in $(OUT)"
	@echo "make check   lint, types and the fast tests: before every commit"
	@echo "make test    run all tests"
	@echo "make fuzz    N random networks (N=1000, START=0) against dense references; SEED=… shows one"
	@echo "make references   the kept maps of whole networks again, which tests compare with"
	@echo "make theory  docs/theory.md again: from every label of the paper to code and tests"
	@echo "make docs    the documentation, with its notebooks and pictures, into $(PAGES)"
	@echo "make lint    ruff: rules and format"
	@echo "make types   pyright, strict"
	@echo "make bench   speed and memory beside one gradient and the peers, into benchmarks/results (MINUTES=…, RESUME=1)"
	@echo "             ONLY=games,peers,growth,memory,capture and NETWORKS=vgg16,… choose; MINUTES=20 ends it; RESUME=1 goes on"
	@echo "make readme  the README's picture and its tables, from the zoo and benchmarks/results"
	@echo "make release  wheel and sdist into dist, each tried in an empty environment"
	@echo "make clean   remove the environment and everything generated"

demo: $(VENV)/.demo
	$(PY) -m backplay demo --out $(OUT)

# glibc hands blocks of 32 MB and more back at once, and the next one is cleared anew: up to a quarter of a large test.
# Here it keeps up to four gigabytes; tests give back what they leave behind (tests/conftest.py).
KEEPING := MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=4294967296

# Two processes with one thread each. One that dies fails the run at once: a new one in its place may wait for ever.
PYTEST := OMP_NUM_THREADS=1 $(KEEPING) $(PY) -m pytest -n 2 --dist worksteal --max-worker-restart 0 --durations 15

TYPES := $(PY) -m pyright --pythonpath $(PY)

# The type checker has one thread: it runs beside the tests, and says its line when it is done.
check: lint
	@$(TYPES) & types=$$!; \
	$(PYTEST) -m "not slow and not series"; tests=$$?; \
	wait $$types && exit $$tests

test: $(VENV)/.dev
	$(PYTEST)

# Seeds reproduce: the last line names those that were played, START goes on behind them.
N ?= 1000
START ?= 0
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(PY) -m fuzz --n $(N) --start $(START) $(if $(SEED),--seed $(SEED))

# Only after a change of what makes them; until then tests make them anew, which takes minutes.
references: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONPATH=tests:tests/helpers $(PY) -m references

# After a change of docstrings, tests or docs/theory.toml that name labels of the paper.
theory: $(VENV)/.dev
	$(PY) docs/make_theory.py

# Warnings are errors; notebooks are run. The last line says that no page asks for anything from elsewhere.
PAGES ?= out/docs
.PHONY: docs
docs: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(PY) docs/make_pictures.py
	OMP_NUM_THREADS=1 $(PY) -m sphinx -q -W --keep-going -j 2 -d $(PAGES)/.doctrees docs $(PAGES)
	$(PY) docs/check_pages.py $(PAGES)

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/.dev
	$(TYPES)

# Alone on its machine: ratios bear a busy one, seconds do not.
bench: $(VENV)/.dev
	$(PY) benchmarks/suite.py $(if $(ONLY),--only $(ONLY)) $(if $(NETWORKS),--networks $(NETWORKS)) \
	  $(if $(RESUME),--resume) $(if $(MINUTES),--minutes $(MINUTES))

readme: $(VENV)/.dev
	$(PY) docs/make_readme.py --picture

# Some minutes: torch is installed once more, and the demo is run from the wheel and from the sdist.
release: $(VENV)/.dev
	$(PY) release/check.py --torch $(TORCH)

clean:
	rm -rf $(VENV) out docs/_generated build dist .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: each stands for a finished step, so that an interrupted one is done again.
$(TORCH_STAMP):
	$(PYTHON) -m venv --clear $(VENV)
	@echo "installing $(TORCH) …"
	@$(PIP) $(TORCH)
	@touch $@

$(VENV)/.demo: pyproject.toml $(TORCH_STAMP)
	@echo "installing backplay[cli,view,zoo] …"
	@$(PIP) --editable ".[cli,view,zoo]"
	@touch $@

$(VENV)/.dev: pyproject.toml $(TORCH_STAMP)
	@echo "installing backplay[dev] …"
	@$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.demo
