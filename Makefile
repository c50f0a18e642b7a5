# Every command of the project. `make help` lists them; none but system-deps needs root.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PROFILE ?= cpu
VENV ?= .venv
TORCH_INDEX ?=
RECIPE ?= deploy/recipes/maze2d-cpu.yaml
ARGS ?=
QUICK ?=
JOBS ?= 2

PY := $(VENV)/bin/python
SERVICES := rollout learner checkpoint-manager controller
CODE := libs services scripts requirements tests conftest.py
UNIT := libs/tests services tests/unit

# Each demo is a run of its own, below runs/.
DEMO := run.name=demo-$(shell date +%Y%m%d-%H%M%S)
# With QUICK=1 it has four minutes: a few steps, looked at on ten mazes.
QUICK_OVERRIDES := run.steps=8 eval.fixed=10 eval.heldout=0 eval.styles=0 eval.larger=0 eval.samples=0

.PHONY: help
help:  ## list the commands
	@echo 'Tandem: make TARGET [VARIABLE=value ...]'
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@for service in $(SERVICES); do \
		printf '  %-26s %s\n' "$$service-run" 'start it alone, by RECIPE and ARGS' "$$service-test" 'its tests' \
			"$$service-lint" 'its style and types' "$$service-image" 'its container image (docker or buildah)'; done
	@echo
	@echo 'Variables (now)'
	@printf '  %-22s %s\n' 'PROFILE=$(PROFILE)' 'cpu or gpu: which pinned requirements/*.txt' \
		'VENV=$(VENV)' 'where everything is installed' \
		'PYTHON=' 'the interpreter to make it from; the first suitable one if empty' \
		'TORCH_INDEX=$(TORCH_INDEX)' "url of PyTorch's CPU wheel index, where pip does not know torch's CPU build by itself" \
		'QUICK=1' 'with demo: a few steps and ten mazes instead of the whole' \
		'JOBS=$(JOBS)' 'with test: how many files at a time; 0: one after another in one process' \
		'RECIPE=, ARGS=' 'with SERVICE-run: the recipe, and overrides of it; ARGS also goes to demo and pytest'

# -- install: two stamps, so that a second run is instant and a new entry point costs seconds -------------------------------------

DEPS := $(VENV)/.deps-$(PROFILE)
PROJECT := $(VENV)/.project-$(PROFILE)

$(DEPS): requirements/$(PROFILE).txt requirements/dev.txt $(wildcard requirements/shims/*.py) scripts/install.sh
	@scripts/install.sh deps $(PROFILE) $(VENV) $(TORCH_INDEX)
	@touch $@

$(PROJECT): $(DEPS) libs/pyproject.toml $(wildcard services/*/pyproject.toml)
	@scripts/install.sh project $(PROFILE) $(VENV)
	@touch $@

requirements/$(PROFILE).txt:
	@echo "install: PROFILE is cpu or gpu, not '$(PROFILE)'" >&2; exit 2

.PHONY: install
install: $(PROJECT)  ## install everything into VENV

.PHONY: system-deps
system-deps:  ## Debian, root: install the programs that some tests use
	@scripts/system_deps.sh

.PHONY: pins
pins:  ## resolve requirements/*.in of PROFILE into pinned requirements/*.txt, installing nothing
	@[[ -x $(PY) ]] || { echo 'pins: needs the pip of $(VENV): make install' >&2; exit 2; }
	@$(PY) requirements/shims/build.py build/shims >/dev/null
	$(PY) scripts/pins.py $(PROFILE) build/shims

# -- run -------------------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: install  ## train the tiny model on mazes, on this machine: the main job (QUICK=1: a short one)
	$(VENV)/bin/tandem train deploy/recipes/maze2d-cpu.yaml $(DEMO) $(if $(QUICK),$(QUICK_OVERRIDES)) $(ARGS)

.PHONY: demo-slide demo-sort
demo-slide: install  ## a sliding puzzle: fine-tune a start for it, once, then train
	[[ -e runs/slide-sft/report.json ]] || $(VENV)/bin/tandem sft deploy/recipes/slide-sft.yaml
	$(VENV)/bin/tandem train deploy/recipes/slide-cpu.yaml $(DEMO) $(ARGS)

demo-sort: install  ## a game of text alone
	$(VENV)/bin/tandem train deploy/recipes/sort-cpu.yaml $(DEMO) $(ARGS)

.PHONY: bench
bench: install  ## measure: figures, not tests
	$(PY) -m pytest tests/bench --override-ini=python_files='bench_*.py' -s $(ARGS)

.PHONY: plan-check
plan-check: install  ## what `tandem plan` foresees against real processes of a 170 M model, within 10%: about a minute
	$(PY) -m pytest tests/bench/check_plan.py --override-ini=python_files='check_*.py' -s $(ARGS)

TRACKERS := $(VENV)/trackers

.PHONY: trackers-check
trackers-check: install  ## real Weights & Biases (offline) and MLflow (SQLite), installed aside and read back: about half a minute
	$(PY) -m pip install --quiet --no-deps --upgrade --target $(TRACKERS) -r requirements/trackers.txt
	PYTHONPATH=$(TRACKERS) $(PY) -m pytest services/controller/tests/test_tracking.py $(ARGS)

.PHONY: soak
soak: install  ## a day of episodes, compressed: 100,000 through simulated engines and real services (SOAK_EPISODES=n)
	$(PY) -m pytest tests/bench/check_soak.py --override-ini=python_files='check_*.py' -s $(ARGS)

.PHONY: bench-consolidate
bench-consolidate: install  ## the checkpoint manager's memory and seconds at the shape of an 8B model's adapter (disk: 20 GB)
	$(PY) -m pytest tests/bench/bench_consolidate.py --override-ini=python_files='bench_*.py' -s $(ARGS)

.PHONY: gpu-check
gpu-check: install  ## on a machine with an NVIDIA GPU (PROFILE=gpu): engine, learner, their agreement, sleep and wake
	$(PY) scripts/gpu_check.py

# -- check -----------------------------------------------------------------------------------------------------------------------

.PHONY: test test-unit test-integration test-e2e
test: install  ## all tests: unit, integration, end to end; JOBS files at a time, the longest first
	$(PY) -m pytest tests/e2e tests/integration tests/fuzz $(UNIT) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-unit: install  ## tests of libs and services, each alone
	$(PY) -m pytest $(UNIT) $(ARGS)

test-integration: install  ## services over real gRPC
	$(PY) -m pytest tests/integration $(ARGS)

test-e2e: install  ## training with real vLLM, Ray and all services
	$(PY) -m pytest tests/e2e $(ARGS)

.PHONY: resume-check
resume-check: install  ## kill -9 at every phase boundary and 20 random instants, resumed exactly: about an hour (SEED=n)
	$(PY) -m pytest tests/e2e --override-ini=python_files='check_*.py' -s $(ARGS)

.PHONY: fuzz
fuzz: install  ## ask every method of every service what nobody should, and send its port anything: minutes
	$(PY) -m pytest tests/fuzz --hypothesis-profile=fuzz $(ARGS)

.PHONY: chaos
chaos: install  ## kill, stop and slow all there is of a run on a Ray cluster of four nodes (SEED=n FAULTS=50 ENGINE=simulated MODE=sync)
	$(PY) -m pytest tests/chaos --override-ini=python_files='check_*.py' -s $(ARGS)

.PHONY: test-chaos
test-chaos: install  ## crashes and pauses at random: minutes
	$(PY) -m pytest tests/chaos $(ARGS)

.PHONY: dashboards
dashboards: install  ## generate deploy/grafana/dashboards and deploy/prometheus/rules from scripts/observability
	$(PY) -m scripts.observability

.PHONY: observability-up observability-down
observability-up:  ## docker: Grafana at http://127.0.0.1:3000, Prometheus, Tempo, collector, for runs in runs/ (Linux)
	@command -v docker >/dev/null || { echo 'observability-up: docker is missing, with its compose plugin' >&2; exit 2; }
	@mkdir -p runs
	docker compose --file deploy/observability/compose.yaml up --detach
	@echo 'Grafana: http://127.0.0.1:3000. Have a run seen: obs.prometheus=true obs.otlp=http://127.0.0.1:4317'

observability-down:  ## stop these; what they hold is kept (ARGS=--volumes: no)
	docker compose --file deploy/observability/compose.yaml down $(ARGS)

.PHONY: lint
lint: install  ## style, who may import whom, house rules, dashboards, Dockerfiles, protos, types
	@command -v git >/dev/null || { echo 'lint: git is missing; it lists the files to look at (Debian: sudo make system-deps)' >&2; exit 2; }
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/lint-imports --no-logo
	$(PY) scripts/house_rules.py
	$(PY) -m scripts.observability --check
	$(VENV)/bin/hadolint docker/*.Dockerfile
	@$(MAKE) --no-print-directory proto-check type

.PHONY: type
type: install  ## types, by pyright
	$(VENV)/bin/pyright

.PHONY: format
format: install  ## let ruff format and sort the code
	$(VENV)/bin/ruff check --fix $(CODE)
	$(VENV)/bin/ruff format $(CODE)

.PHONY: proto proto-check
proto: install  ## generate libs/tandem/rpc/gen from proto/
	$(PY) scripts/proto.py

proto-check: install  ## lint the protos, compare the generated code, refuse breaking changes since the last release
	cd proto && $(abspath $(VENV))/bin/buf lint
	@tag=$$(git describe --tags --abbrev=0 2>/dev/null || true); if [[ -z $$tag ]]; then echo 'proto-check: no release to compare with yet'; \
	else set -x; $(VENV)/bin/buf breaking proto --against ".git#tag=$$tag,subdir=proto"; fi
	$(PY) scripts/proto.py --check

.PHONY: clean
clean:  ## remove caches and build outputs; VENV and runs/ stay
	rm -rf build dist .pytest_cache .ruff_cache .import_linter_cache .hypothesis libs/build services/*/build
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# -- one service -----------------------------------------------------------------------------------------------------------------

define SERVICE_TARGETS
.PHONY: $(1)-run $(1)-test $(1)-lint $(1)-image
$(1)-run: install
	$$(PY) -m tandem_$(2) $$(RECIPE) $$(ARGS)
$(1)-test: install
	$$(PY) -m pytest services/$(2)/tests $$(ARGS)
$(1)-lint: install
	$$(VENV)/bin/ruff check services/$(2)
	$$(VENV)/bin/ruff format --check services/$(2)
	$$(VENV)/bin/pyright services/$(2)
$(1)-image:
	@scripts/image.sh $(1) $$(PROFILE) $$(TORCH_INDEX)
endef
$(foreach service,$(SERVICES),$(eval $(call SERVICE_TARGETS,$(service),$(subst -,_,$(service)))))
