PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLASSES := $(VENV)/.spark-classes
PIP_QUIET := --quiet --quiet --disable-pip-version-check
LOCKED := $(BIN)/python -m pip install $(PIP_QUIET) --no-compile --no-deps --require-hashes -r
SOURCES := $(wildcard src tests benchmarks examples fuzz)
RUNS := 1000000
STATES := 5000
FLIPS := 1000

GET_PEERS = { $(BIN)/python -c 'import redis, hiredis, nats, pika, paho' 2>/dev/null || \
	$(BIN)/python -m pip install $(PIP_QUIET) --no-build-isolation -e '.[peers]'; } && sh benchmarks/get_peers.sh
PAGE := --markdown docs/benchmarks.md --plot docs/benchmarks-peers.svg
SPARK_PAGE := --markdown docs/benchmarks.md --plot-spark docs/benchmarks-spark.svg
PIPELINE_PAGE := --markdown docs/benchmarks.md --plot-pipeline docs/benchmarks-pipeline.svg

# Containers set it. Here hundreds of processes would each compile the same thousands of modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-failed soak soak-copy soak-pipeline soak-growth soak-doors soak-tests torture fuzz lint format bench bench-peers bench-spark bench-pipeline peers browser pictures docs lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Make .venv with everything that development needs
	@:

demo: $(STAMP) ## Show sensors, broker, subscribers and Spark at work, for a minute; ARGS=--help tells more
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(CLASSES) ## Run the tests, in four processes; ARGS go to pytest
	@$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-failed: $(CLASSES) ## Run the tests again, one after the other, that failed last time
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(ARGS)

soak: soak-copy soak-pipeline soak-doors soak-tests ## Kill broker, Spark and whoever else takes part, and check the outcome; all that takes minutes

soak-copy: $(STAMP) ## Kill everybody who copies topics through Spark 20 times; ARGS go to the soak
	@$(BIN)/python -m tests.pipeline.soak $(ARGS)

soak-pipeline: $(STAMP) ## Kill everybody who runs the pipeline, for five minutes; ARGS go to the soak
	@$(BIN)/python -m tests.pipeline.pipeline_soak $(ARGS)

soak-growth: $(STAMP) ## Run archive, rollup and alerts for an hour, and watch what grows; ARGS go to the soak
	@$(BIN)/python -m tests.pipeline.growth_soak --plot docs/pipeline-growth.svg $(ARGS)

soak-doors: $(STAMP) ## Make and drop connections at every door for ten minutes, and watch what is left; ARGS go to the soak
	@$(BIN)/python -m tests.doors.soak $(ARGS)

soak-tests: $(CLASSES) ## Run the tests that take minutes: the whole demo, benchmarks of Spark, and ten times the examples
	@$(BIN)/python -m pytest --soak -m "soak or hypothesis" $(ARGS)

# Each of the three machines of the model takes 60 steps an example: 500,000 together.
torture: $(STAMP) ## Lose power in STATES ways, flip FLIPS bits, and hold half a million random steps of brokers against the model
	@$(BIN)/python -m pytest -s --torture --timeout 14400 --states $(STATES) --flips $(FLIPS) \
		tests/faults/test_power_loss.py tests/faults/test_flipped_bits.py tests/broker/test_model.py $(ARGS)

fuzz: $(STAMP) ## Feed every codec RUNS inputs that nobody would write; ARGS name targets
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		$(BIN)/python -m pip install $(PIP_QUIET) --no-build-isolation -e '.[fuzz]'
	@$(BIN)/python -m fuzz --runs $(RUNS) $(ARGS)

lint: $(STAMP) ## Check style and types
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --quiet --check $(SOURCES)
	@$(BIN)/mypy $(SOURCES)

format: $(STAMP) ## Format the code and mend what can be mended
	@$(BIN)/ruff check --quiet --fix $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)

bench: $(STAMP) ## Measure throughput and latency; ARGS go to the benchmarks
	@$(GET_PEERS) || true
	@$(BIN)/python -m benchmarks $(ARGS)

bench-peers: $(STAMP) ## Measure other brokers and Stafeta in turn, and write it into the documentation
	@$(GET_PEERS) || true
	@$(BIN)/python -m benchmarks peer_publish peer_consume peer_latency $(if $(findstring --quick,$(ARGS)),,$(PAGE)) $(ARGS)

bench-spark: $(STAMP) ## Measure Spark on topics beside Parquet, and write it into the documentation
	@$(BIN)/python -m benchmarks spark_read spark_stream spark_sink spark_tasks \
		$(if $(findstring --quick,$(ARGS)),,$(SPARK_PAGE)) $(ARGS)

bench-pipeline: $(STAMP) ## Measure the jobs of the pipeline beside Spark alone, and write it into the documentation
	@$(BIN)/python -m benchmarks pipeline_archive pipeline_rollup pipeline_sql pipeline_answers pipeline_latency pipeline_compact \
		$(if $(findstring --quick,$(ARGS)),,$(PIPELINE_PAGE)) $(ARGS)

peers: $(STAMP) ## Install what the benchmarks compare with: other brokers, and their Python clients
	@$(GET_PEERS)

browser: ## Install the browser that tests and pictures of the dashboard need, from Debian's packages
	@test -x /usr/bin/chromium || { test "$$(id -u)" = 0 && apt-get install -y chromium; } || \
		{ echo "There is no /usr/bin/chromium, and only root can install it: sudo apt-get install chromium" >&2; exit 1; }

pictures: $(STAMP) ## Take the pictures of the dashboard into docs/pictures, with the browser; ARGS=--help tells more
	@$(BIN)/python -m tests.doors.http.pictures $(ARGS)

docs: $(STAMP) ## Build the documentation into site/
	@$(BIN)/mkdocs build --quiet --strict

lock: $(STAMP) ## Resolve the dependencies anew into requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --extra dev \
		--generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
		--custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## Remove .venv and everything built
	@rm -rf $(VENV) site dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis fuzz-crashes
	@find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Stafeta needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=python3.11 install" >&2; exit 1; }
	@echo "Installing into $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@# Python compiles what is imported, once; pip would compile all of 8,000 modules, one after the other. PySpark is a
	@# source distribution, of which pip makes a wheel of 450 MB: the others are installed beside it. All that is needed
	@# is in the lock.
	@awk '/^[a-z]/ { spark = /^pyspark==/ } { print > (spark ? "$(VENV)/spark.lock" : "$(VENV)/other.lock") }' requirements.lock
	@$(LOCKED) $(VENV)/spark.lock & spark=$$!; $(LOCKED) $(VENV)/other.lock; other=$$?; wait $$spark && exit $$other
	@$(BIN)/python -m pip install $(PIP_QUIET) --no-deps --no-build-isolation -e .
	@touch $@

# So that the tests' JVMs start in half the time; none where there is no Java. Beside it pytest compiles the tests, once
# instead of in each of its processes.
$(CLASSES): $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1 & compiling=$$!; \
	$(BIN)/python -m tests.pipeline.class_archive >/dev/null 2>&1 || echo "Spark's classes are not archived" >&2; \
	wait $$compiling || true
	@touch $@
