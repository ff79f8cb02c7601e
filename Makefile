# The front door: `make help`. Every target is one line that calls a program which also works without make.
SHELL := /bin/sh
VENV_HOME ?= $(CURDIR)
export VENV_HOME

VARIABLES := BACKEND NP LAUNCHER DATASET ARGS DRY_RUN NNODES NODE_RANK MASTER_ADDR MASTER_PORT HOSTS \
	PYTHON TORCH_INDEX VENV_HOME OMP_NUM_THREADS RUNTIME IMAGE TIMEOUT LOG_DIR LOGDIR \
	UPGRADE JOBS WHEEL_CACHE RUN RESTARTS STARTUP_TIMEOUT SILENCE_TIMEOUT PRESET SCHEDULER A B \
	ENGINE BASE_IMAGE TORCH_LOCK WHEELHOUSE HVD_CXX_STD NO_CACHE EXTRAS SHM_SIZE
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
UNKNOWN := $(filter-out $(VARIABLES) HOROVOD_%,$(GIVEN))
$(if $(UNKNOWN),$(error unknown variable $(UNKNOWN): there are $(VARIABLES)))

.DEFAULT_GOAL := help
.PHONY: bench image image-twice image-report test-images sbom manifests help run doctor matrix report compare test conformance faults equivalence reproduce data tensorboard env lint lint-sbatch format lock clean

help: ## This text
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "make %-12s %s\n", $$1, $$2 }'

run: ## Train: BACKEND=gloo NP=2 LAUNCHER=torchrun DATASET=... ARGS="--num_epochs=1 ..." DRY_RUN=1
	@exec launchers/run.sh $(value ARGS)

doctor: ## What this machine or cluster can run, and what will bite: ARGS="--json", BACKEND=horovod
	@exec docker/with.sh "$${BACKEND:-gloo}" -- python -m reference.doctor --xla-python="$$VENV_HOME/.venv-xla/bin/python" $(value ARGS)

matrix: ## The comparison matrix: PRESET=smoke, cpu, gpu, cluster; ARGS="--resume"; docs/matrix.md
	@exec docker/with.sh horovod peer -- python -m experiments run --preset="$${PRESET:-smoke}" $(value ARGS)

report: ## What a matrix run says, in HTML and Markdown: RUN=output-matrix/... (default: the newest)
	@exec docker/with.sh gloo -- python -m experiments report $${RUN:+"$$RUN"} $(value ARGS)

bench: ## Speed beside the peers, as ratios: ARGS="--data_path=<folder of images> --only=engine"; docs/performance.md
	@exec docker/with.sh horovod peer -- python -m benchmarks run $(value ARGS)

compare: ## What changed between two matrix runs; fails on a regression: A=... B=...
	@exec docker/with.sh gloo -- python -m experiments compare "$${A:?give A=<run>}" "$${B:?give B=<run>}" $(value ARGS)

test: ## The tests: ARGS="-k sampler"
	@exec docker/with.sh gloo dev peer -- python -m pytest -n 2 --dist loadgroup $(value ARGS)

image: ## Build an image: BACKEND=gloo, horovod, xla-tpu
	@exec docker/image.sh "$${BACKEND:-gloo}"

image-twice: ## Build twice with podman, compare the digests: BACKEND=gloo
	@exec docker/image-twice.sh "$${BACKEND:-gloo}"

image-report: ## Size and build time of the images: docs/images.md
	@exec python3 docker/report.py

test-images: ## The tests of the images that are built
	@exec docker/with.sh gloo dev -- python -m pytest tests/images -rs $(value ARGS)

sbom: ## What is in an image, as CycloneDX: BACKEND=gloo
	@exec launchers/container.sh sbom

manifests: ## Kubernetes jobs: BACKEND=nccl NP=8 NNODES=4 IMAGE=...
	@exec docker/with.sh gloo -- python docker/manifests.py --backend="$${BACKEND:-gloo}" --np="$${NP:-2}" --nnodes="$${NNODES:-2}" --image="$${IMAGE:?give IMAGE=<name>}" -- $(value ARGS)

conformance: ## The checks that every backend must pass: BACKEND=gloo, horovod, xla-tpu
	@exec docker/with.sh "$${BACKEND:-gloo}" dev -- python -m pytest tests/conformance $(value ARGS)

faults: ## Break trainings in every way under every launcher, and write docs/faults.md (about an hour)
	@exec docker/with.sh horovod dev -- python -m tests.faults.records $(value ARGS)

equivalence: ## The same training on every launcher, backend and world size, compared: docs/equivalence.md
	@exec docker/with.sh horovod -- python -m reference.programs.equivalence --xla-python="$$VENV_HOME/.venv-xla/bin/python" $(value ARGS)

reproduce: ## Run a recorded run again and compare: RUN=output-cifar10/...
	@exec docker/with.sh "$${BACKEND:-gloo}" -- python -m reference.cifar10.reproduce "$${RUN:?give RUN=<run directory>}" $(value ARGS)

data: ## Download CIFAR-10 once: ARGS="--mirror=https://..."
	@exec docker/with.sh gloo -- python -m reference.cifar10 data $(value ARGS)

tensorboard: ## Show the runs in a browser: LOGDIR=output-cifar10
	@exec docker/with.sh gloo -- tensorboard --logdir "$${LOGDIR:-output-cifar10}" $(value ARGS)

env: ## Make an environment without running anything: BACKEND=horovod, xla-tpu
	@exec docker/with.sh "$${BACKEND:-gloo}" -- python --version

lint: ## Style, types and shell scripts
	@exec docker/with.sh gloo dev peer -- .ci/lint

lint-sbatch: ## Mistakes in Slurm batch scripts that sbatch takes in silence: ARGS=FILE
	@exec "$${PYTHON:-python3}" launchers/lint_sbatch.py $(value ARGS)

format: ## Put the Python files into the house style
	@exec docker/with.sh gloo dev -- ruff format

lock: ## Renew docker/locks: UPGRADE=1 for the newest versions
	@exec docker/with.sh gloo dev -- docker/lock.sh

clean: ## Remove the environments and caches of this clone; data and runs stay
	@rm -rf .venv .venv-xla .venv.lock .venv-xla.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis
