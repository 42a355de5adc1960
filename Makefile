# Two commands matter: `make book` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# An active conda environment that environment.yml made is taken as it is. Else there is a .venv.
CONDA := $(if $(CONDA_PREFIX),$(wildcard $(CONDA_PREFIX)/lib/python3*/site-packages/mpt_lml-*.dist-info))
VENV  := $(if $(CONDA),$(CONDA_PREFIX),.venv)
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
BUILD := _build
HOME_PAGE := $(BUILD)/html/index.html
# Two cores: each of two pytest workers computes on one.
WORKERS ?= 2
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# What each phase of a command took, in seconds: `make book` and `make test` print it at their end.
PHASES := $(BUILD)/phases
ifeq ($(MAKELEVEL),0)
$(shell rm -f $(PHASES))
endif
timed = SECONDS=0; $(2); mkdir -p $(BUILD); printf '%s\t%s\n' '$(1)' $$SECONDS >> $(PHASES)
TELL_PHASES = if [ -f $(PHASES) ]; then awk -F '\t' '{ all = all ", " $$1 " " $$2; sum += $$2 } \
  END { print "Seconds: " substr(all, 3) "; together " sum }' $(PHASES); fi
# Chapters to take, all by default: make notebooks CHAPTERS="03-mask-rate-curve"
CHAPTERS ?=
# Options of tests/mutants.py, such as --number 20.
MUTANTS ?=
export PYDEVD_DISABLE_FILE_VALIDATION := 1
export JUPYTER_PLATFORM_DIRS := 1
# Waiting threads soon sleep, so that other busy processes do not slow these down several times over.
export GOMP_SPINCOUNT ?= 1000
# A reader's own settings change no figure and no result, and what is compiled once stays so: with
# nothing kept, each of the many processes here would compile torch again.
unexport MPLBACKEND PYTHONPATH PYTHONDONTWRITEBYTECODE

.PHONY: help env book test unit coverage data oracles mutants nbval site pdf print student form bench colab peers release check format notebooks serve clean

help: ## what each target does
	@grep -hE '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

# pip 26 finds the pinned set in half of the time that the pip of Python 3.11 takes. Most of what is
# installed is never imported, and Python compiles what is: without compiling, half of the time again.
# pip shows what it does, but in a log.
PIP_INSTALL = $(BIN)/python -m pip install $(if $(CI),--quiet) --disable-pip-version-check --no-compile
NO_NETWORK = { echo "make: the packages could not be installed, for the reason that pip gives above. This step needs a network, once: name a proxy in HTTPS_PROXY, or a mirror of the package index in PIP_INDEX_URL." >&2; exit 1; }
INSTALL = $(PIP_INSTALL) --require-hashes -r .ci/pins/pip.txt && \
  $(PIP_INSTALL) -c constraints.txt --build-constraint constraints.txt -e ".[book,score]" || $(NO_NETWORK)

env: $(STAMP) ## .venv with the pinned dependencies (a second call is instant)

ifneq ($(CONDA),)
$(STAMP): pyproject.toml
	@$(BIN)/python book/_tools/has_packages.py
	@touch $(STAMP)
else
$(STAMP): constraints.txt pyproject.toml .ci/pins/pip.txt
	@python=""; \
	for candidate in $${PYTHON:-} python3.11 python3; do \
	  if "$$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: Python 3.11 or newer is needed and none was found (tried: python3.11, python3)." >&2; \
	  echo "      Install it, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; \
	  exit 1; fi; \
	if ! $(BIN)/python -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  rm -rf $(VENV); "$$python" -m venv $(VENV); fi
	@echo "Installing the pinned packages into $(VENV): 0.45 GB to download, or about 3 GB where PyTorch brings CUDA."
	@$(call timed,installation,$(INSTALL))
	@touch $(STAMP)
endif

# Tools of one command, a group in pyproject.toml.
CHECKERS := $(VENV)/.installed-check
BROWSER_TOOLS := $(VENV)/.installed-browser
$(VENV)/.installed-%: $(STAMP)
	@$(PIP_INSTALL) -c constraints.txt --group $* || $(NO_NETWORK)
	@touch $@

# Where there is no Chromium, its tests say so. In CI that is a fault.
CHROMIUM := $(or $(MPT_LML_CHROMIUM),$(shell command -v chromium chromium-browser google-chrome google-chrome-stable))
IN_BROWSER := $(if $(CHROMIUM)$(filter true,$(CI)),$(BROWSER_TOOLS))

book: $(STAMP) ## execute every chapter, build the HTML into _build/html
	@test -f $(HOME_PAGE) || echo "The first build executes every chapter and then writes the pages: two minutes on two quiet cores."
	env -u MPT_LML_DATA $(BIN)/python book/_tools/build_site.py
	@$(TELL_PHASES)

test: book ## the book and its outputs, then unit tests, nbval over some notebooks, the pages
	@$(call timed,unit tests,$(MAKE) --no-print-directory unit)
	@$(call timed,notebooks again,$(MAKE) --no-print-directory nbval NOTEBOOKS='$(AGAIN)')
	@$(call timed,pages,$(MAKE) --no-print-directory site)
	@$(TELL_PHASES)

PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -q -n $(WORKERS)
unit: $(STAMP) ## tests of the packages and the experiments
	$(PYTEST) --dist loadgroup tests/unit

# Each process that starts measures itself, those of pytest-xdist, too.
coverage: $(STAMP) ## which lines of the packages and experiments the unit tests reach, as a table
	rm -f $(BUILD)/.coverage*
	COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(MAKE) --no-print-directory unit
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

oracles: $(STAMP) ## every model with a closed form against 60 digits, the whole grid, as a table
	$(ONE_THREAD) nice $(BIN)/python tests/oracles_table.py

mutants: $(STAMP) ## small faults put into the package: which would its tests not see? (MUTANTS="--number 20")
	$(ONE_THREAD) nice $(BIN)/python tests/mutants.py $(MUTANTS)

# What make book has executed is compared with the stored outputs by `site`, every chapter. A second
# execution, by a kernel that starts cold, is in `make test` for every fourth chapter, in turn by the
# number of commits. Once a week it is for all.
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 1)
# The later chapters take longest and come first, so that no worker waits for one of them at the end.
AGAIN ?= $(shell ls book/[0-9]*.ipynb | awk 'NR % 4 == $(COMMITS) % 4' | sort -r)
NOTEBOOKS ?= $(shell ls -r book/*.ipynb)
# Without ipywidgets, which nothing here needs, tqdm warns on being imported in a notebook.
nbval: export PYTHONWARNINGS := ignore:IProgress not found
# A progress bar goes to stderr, and the stored notebooks have none of that.
nbval: export TQDM_DISABLE := 1
nbval: $(STAMP) ## re-execute every committed notebook and compare with its stored outputs
	$(PYTEST) --dist loadscope -p no:cacheprovider --nbval --nbval-kernel-name python3 --nbval-cell-timeout 300 $(NOTEBOOKS)

site: export MPT_LML_BOOK_BUILT := 1
site: $(STAMP) $(IN_BROWSER) ## checks on notebooks and built pages, in Chromium too (after make book)
	$(PYTEST) --dist loadgroup -m "not slow" tests/book tests/browser

pdf: book ## the whole book as one PDF, _build/html/book.pdf, checked (needs Chromium)
	$(MAKE) --no-print-directory print

print: $(BROWSER_TOOLS) # the pages as they are built
	$(BIN)/python book/_tools/pdf.py
	$(BIN)/python -m pytest -q tests/browser/test_pdf.py

student: $(STAMP) ## notebooks without solutions, in _build/student
	$(BIN)/python book/_tools/student.py $(CHAPTERS)

form: $(STAMP) ## words, lines and minutes of each chapter
	$(BIN)/python book/_tools/form.py

bench: $(STAMP) ## times and ratios against benchmarks/results.json: a ratio down by a third fails
	$(BIN)/python benchmarks/run.py --against benchmarks/results.json --json $(BUILD)/benchmarks.json

colab: $(STAMP) ## one chapter in an empty environment, as Colab runs it (MPT_LML_COLAB=all: every one)
	$(BIN)/python -m pytest -q tests/book/test_colab.py

peers: $(STAMP) ## the numbers of lm-evaluation-harness, minicons and evaluate, beside .venv
	VENV=$(VENV) bash .ci/peers borrowed

release: $(CHECKERS) ## wheel and sdist in dist/, by pinned tools, tried in an empty environment
	rm -rf dist
	MPT_LML_DIST=dist $(BIN)/python -m pytest -q tests/book/test_release.py

data: $(STAMP) ## unit tests on the real data files: make data MPT_LML_DATA=their folder
	MPT_LML_DATA="$(MPT_LML_DATA)" $(ONE_THREAD) $(BIN)/python -m pytest -q -m data tests/unit || [ $$? -eq 5 ] # 5: no test is marked

check: $(CHECKERS) ## format, lint, types, order of imports, spelling, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(BIN)/python book/_tools/copied.py # a page defines each name before it uses it
	$(BIN)/ruff check --isolated --select F821 $(BUILD)/copied
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/zizmor --offline --quiet .github

format: $(CHECKERS) ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

notebooks: $(STAMP) ## regenerate the executed .ipynb beside each chapter's .md
	$(ONE_THREAD) $(BIN)/python book/_tools/notebooks.py $(CHAPTERS)

serve: $(STAMP) ## show the book at http://localhost:8000, built again whenever a source changes
	env -u MPT_LML_DATA $(BIN)/python book/_tools/serve.py

clean: ## remove what was built (keeps .venv)
	rm -rf $(BUILD) .pytest_cache .mypy_cache .ruff_cache
