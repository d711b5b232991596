# Everything is installed into this folder: uv into .tools/, the environment into .venv/.
PYTHON ?= python3
UV_VERSION := 0.13.8
UV := .tools/bin/uv
UV_STAMP := .tools/uv-$(UV_VERSION)
VENV_STAMP := .venv/.synced
RUN := .venv/bin
PACKAGES := $(wildcard packages/scaler packages/scaler-*)
# These run on Windows too, so their types must hold there.
PORTABLE := protocol io client ui
PYTHONS ?= 3.10 3.12 3.13
PYPY ?= pypy3
PYPY_PACKAGES := protocol io storage scheduler
PYPY_TESTS := packages/scaler-io/tests/links packages/scaler-scheduler/tests/core packages/scaler-scheduler/tests/journal
THIRD_PARTIES := luigi==3.8.1 pargraph==0.9.6 tenacity==9.2.1 xarray==2026.9.0
# In the order of testpaths: files that take long come first, so that all processes end at about the same time.
SPREAD := --numprocesses 5 --dist loadfile --no-loadscope-reorder

export UV_PYTHON_DOWNLOADS := never
# A caller's environment must not receive what belongs into .venv. Where Python may not keep bytecode, each of the
# thousands of processes that tests start compiles all that it imports.
unexport VIRTUAL_ENV UV_PROJECT_ENVIRONMENT UV_PYTHON PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help sync fmt lint type test pytest matrix pypy windows cov bench soak chaos third-parties pins api docs wheels demo

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

sync: $(UV_STAMP) ## install everything into .tools/ and .venv/
	@rm -f $(VENV_STAMP)
	@$(MAKE) --no-print-directory $(VENV_STAMP)

fmt: $(VENV_STAMP) ## format and fix what ruff can fix
	$(RUN)/ruff check --fix-only --quiet .
	$(RUN)/ruff format .

lint: $(VENV_STAMP) ## ruff and the import contracts
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/lint-imports

type: $(VENV_STAMP) ## mypy over the sources, for Windows, over tests and tools
	$(RUN)/mypy
	$(RUN)/mypy --platform win32 --cache-dir .mypy_cache/win32 $(PORTABLE:%=packages/scaler-%/src)
	@for folder in $(PACKAGES:%=%/tests) tests tools; do \
		if ls $$folder/*.py >/dev/null 2>&1; then echo "mypy $$folder"; $(RUN)/mypy $$folder || exit 1; fi; \
	done

# Types are checked beside the tests, which mostly wait, and printed in one piece; "+" prints the tests' lines at once.
test: lint ## lint, contracts, types, installed versions, tests
	$(UV) pip check --python .venv
	@$(MAKE) --no-print-directory --jobs=2 --output-sync type pytest

# In a fresh checkout each process of SPREAD would rewrite the assertions of all tests: one does so for all before.
# Errors of that are those of the tests themselves, which print them.
pytest: $(VENV_STAMP)
	@test -d tests/__pycache__ || $(RUN)/pytest --collect-only --quiet >/dev/null || true
	+$(RUN)/pytest $(SPREAD)

matrix: $(UV_STAMP) ## the tests with other Pythons: make matrix PYTHONS="3.10 3.12 3.13"
	@for version in $(PYTHONS); do \
		UV_PROJECT_ENVIRONMENT=.matrix/$$version $(UV) sync --quiet --python $$version && \
		.matrix/$$version/bin/pytest $(SPREAD) || exit 1; \
	done

# Newer versions of hypothesis, and pycapnp, which the tests of the protocol compare with, cannot be built there.
pypy: $(UV_STAMP) ## the tests of links and scheduler on PyPy: make pypy PYPY=/usr/bin/pypy3
	$(UV) venv --quiet --clear --python $(PYPY) .matrix/pypy
	$(UV) --no-config pip install --quiet --python .matrix/pypy "hypothesis<6.140" pytest pytest-timeout pytest-xdist tblib \
		$(PYPY_PACKAGES:%=--editable packages/scaler-%)
	.matrix/pypy/bin/pytest $(SPREAD) $(PYPY_TESTS)

# The packages that the client needs must be installed for this Python, whose version must be that of .venv.
windows: $(VENV_STAMP) ## the client on Windows, under Wine: make windows WINDOWS_PYTHON=/path/to/python.exe
	SCALER_WINDOWS_PYTHON=$(WINDOWS_PYTHON) $(RUN)/pytest tests/test_windows_client.py

# Processes that tests kill leave incomplete data: combine warns of them and goes on. The timeout of a test is long,
# because coverage slows tests down, and pytest-timeout's exit can wait for ever for the lock of coverage.
cov: $(VENV_STAMP) ## coverage by module, of all processes that the tests start
	@rm -rf .coverage && mkdir .coverage
	$(RUN)/coverage run -m pytest --timeout=600 $(SPREAD); failed=$$?; \
	$(RUN)/coverage combine --quiet; $(RUN)/coverage report --sort=cover && exit $$failed

bench: $(VENV_STAMP) ## measure speed and memory
	$(RUN)/python bench/run.py

soak: $(VENV_STAMP) ## the long tests, and new random examples for the others
	$(RUN)/pytest -m "soak or hypothesis" --timeout=0 --hypothesis-profile=new-examples

chaos: $(VENV_STAMP) ## 200 clusters in which everything fails at random while 20,000 tasks run
	$(RUN)/pytest -m chaos --timeout=0

# Both distributions of parfun have the same modules, so each gets a run.
third-parties: $(VENV_STAMP) ## programs of others, unchanged, on a cluster: parfun, pargraph, xarray, SciPy, Luigi
	@for parfun in parfun==7.2.2 opengris-parfun==7.4.0; do \
		$(UV) run --no-sync --compile-bytecode --with $$parfun $(THIRD_PARTIES:%=--with %) pytest -m third_parties tests/test_third_parties.py || exit 1; \
	done

pins: $(VENV_STAMP) ## take the newest third-party versions into pyproject.toml
	$(RUN)/python tools/pins.py $(UV)

api: $(VENV_STAMP) ## write docs/api.md, docs/options.md and the conformance vectors from the code
	$(RUN)/python tools/api.py
	$(RUN)/python tools/options.py
	$(RUN)/python tools/conformance.py
	$(RUN)/python tools/link_vectors.py
	$(RUN)/python tools/service_vectors.py

docs: $(VENV_STAMP) ## the documentation as a site, from site/index.html on (Python 3.11 or newer)
	$(RUN)/python -m sphinx --quiet --fresh-env --nitpicky --fail-on-warning --keep-going --conf-dir docs . site

wheels: $(UV_STAMP) ## build the eight wheels into dist/
	@rm -rf dist
	$(UV) build --all-packages --wheel --out-dir dist --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"

demo: $(VENV_STAMP) ## a real job on a local cluster
	$(RUN)/python examples/demo.py

$(VENV_STAMP): pyproject.toml $(PACKAGES:%=%/pyproject.toml) $(UV_STAMP)
	$(UV) sync --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	@touch $@

# Debian ships Python without venv, and its Python refuses a plain `pip install`: hence two ways.
$(UV_STAMP):
	@rm -rf .tools
	@if $(PYTHON) -m venv .tools >/dev/null 2>&1; then \
		.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); \
	elif rm -rf .tools && $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools uv==$(UV_VERSION); \
	else \
		echo "$(PYTHON) has neither venv nor pip: install the Debian package python3-venv" >&2; exit 1; \
	fi
	@touch $@
