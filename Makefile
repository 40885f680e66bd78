# Everything sets up what it needs: a machine with make and python3 (3.11 or newer, with venv) is enough.
#   make demo    the broker under fire, with the official SDK
#   make test    all tests
#   make help    the rest

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Options of `duobus serve` and `duobus demo`.
ARGS ?=

# What make test-compiled runs with everything compiled.
COMPILED_TESTS := $(addprefix tests/unit/,codec amqp model fragment broker cluster gateway durability hostile simulation) \
	$(addprefix tests/integration/,gateway durability hostile) $(addprefix tests/acceptance/,conformance durability)

.DEFAULT_GOAL := help
.PHONY: screenshots console-load dist image help setup check test compile test-compiled demo demo-spark demo-cluster serve bench parts http-interfaces neighbours backlog connections fanout paired proxied-links several-servers scale bench-spark spark-cluster sim sim-bugs killloop faults cuts claim-kills bench-kafka fulldisk powercut lake spark-kills javascript java go proton python-live rust fuzz mutants docs samples schemathesis twins format clean stores entities

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-14s %s\n", $$1, $$2 }'

# Stale when what to install has changed, and only then.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "duobus needs Python 3.11 or newer; say which one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "This Python lacks venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV) ..." >&2; $(PYTHON) -m venv $(VENV); }
	@echo "Installing duobus and its tools into $(VENV) ..." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[dev]'
	@$(BIN)/python tools/python_build.py
	@touch $@

setup: $(STAMP) ## Make .venv with the package and all tools

check: $(STAMP) ## Lint, format, types, import rules, figures of the layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/lint-imports --config .importlinter-runtime
	$(BIN)/python tools/house.py --where

# Two of eight processes run the unit tests, which compute, and yield to the others; six run the rest, which waits for
# processes, disks and timers more than it computes (tests/kits/schedule.py). Tests of a group share one process, and with
# it what is slow to start: Spark. Bytecode is kept, whatever the environment says: tests start hundreds of processes, and
# compiling the package takes as long as starting one.
WORKERS ?= 8
test: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP) ## All tests (WORKERS=...)
	$(BIN)/python tools/tests_bytecode.py
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --durations=25 tests

.PHONY: test-fast
test-fast: export PYTHONDONTWRITEBYTECODE :=
test-fast: $(STAMP) ## The unit tests that are not slow: no process, no socket, few seeds; at most 90 s on two cores
	$(BIN)/python tools/fast_tests.py -n 2 --dist loadgroup $(ARGS)

compile: $(STAMP) ## The compiled twin into .build/compiled (PYTHONPATH=.build/compiled); needs a C compiler
	@$(BIN)/python -c 'import setuptools' 2>/dev/null \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input 'setuptools>=69'
	$(BIN)/python tools/compile_twin.py $(ARGS)

# The simulation looks into the fragment and changes it, so there the fragment stays Python.
test-compiled: compile ## The tests of what is compiled, against the compiled twin
	PYTHONPATH=$(CURDIR)/.build/compiled $(BIN)/python -m pytest -q -n 2 $(COMPILED_TESTS)
	PYTHONPATH=$(CURDIR)/.build/compiled-engine $(BIN)/python -m pytest -q -n 2 tests/unit/simulation

demo: $(STAMP) ## Send, kill the broker three times, count: nothing may be lost (ARGS='--json')
	$(BIN)/duobus demo $(ARGS)

screenshots: $(STAMP) ## Photograph the console on a shop into docs/images; needs Chromium (ARGS='overview --theme dark')
	$(BIN)/python tools/screenshots.py $(ARGS)

console-load: $(STAMP) ## Load the console: 1,000,000 messages, 100 open consoles, a message of 100 MB, 10,000 entities (ARGS=--quick)
	$(BIN)/python -m tools.console_load $(ARGS)

demo-spark: $(STAMP) ## A pipeline in one document, killed in each of its stages, counted and priced (needs Java 17 or 21)
	@rm -rf .build/demo-spark
	$(BIN)/duobus demo --part spark --seconds-limit 600 --keep .build/demo-spark $(ARGS)

demo-cluster: $(STAMP) ## Three servers over two PostgreSQL servers, each of the five killed under traffic
	$(BIN)/duobus demo --part cluster --seconds-limit 600 $(ARGS)

.PHONY: relay-proof
relay-proof: $(STAMP) ## 10,000 requests over two relays, each killed and stopped, and 1 GB through a tunnel (ARGS=--quick)
	$(BIN)/python tools/relay_proof.py $(ARGS)

serve: $(STAMP) ## Run a broker on this machine with the emulator's key (ARGS='...' for other options)
	$(BIN)/duobus serve $(or $(ARGS),--data .build/bus --emulator --tls-self-signed)

bench: $(STAMP) ## Measure; results go to benchmarks/results
	$(BIN)/python -m benchmarks.run $(ARGS)
	$(BIN)/python -m benchmarks.parts $(filter --quick,$(ARGS))

parts: $(STAMP) ## Only what make bench measures beside the whole: rules, fan-out, forwarding, HTTP (ARGS='--parts rules')
	$(BIN)/python -m benchmarks.parts $(ARGS)

http-interfaces: $(STAMP) ## What the HTTP interfaces cost beside a bare HTTP server (ARGS=--quick)
	$(BIN)/python -m benchmarks.http_interfaces $(ARGS)

connections: $(STAMP) ## What an idle connection costs, plain and with TLS, 10,000 of them (COUNT=...)
	$(BIN)/python -m benchmarks.connections --count $(or $(COUNT),10000)

neighbours: $(STAMP) ## Measure what hostile peers cost the others (ARGS=--quick)
	$(BIN)/python -m benchmarks.neighbours $(ARGS)

stores: $(STAMP) ## Measure what a store that stalls costs the others, and four stores on one disk beside one (ARGS=--quick)
	$(BIN)/python -m benchmarks.stores $(ARGS)

entities: $(STAMP) ## Create, list and restart a broker with 10,000 entities (ENTITIES=1000)
	DUOBUS_ENTITIES=$(or $(ENTITIES),10000) $(BIN)/python -m pytest -q tests/integration/server/test_many_entities.py

backlog: $(STAMP) ## Measure a deep backlog: BACKLOG=2000000 messages; some 3 GB of disk
	$(BIN)/python -m benchmarks.backlog --messages $(or $(BACKLOG),2000000) $(ARGS)

fanout: $(STAMP) ## Measure what a topic costs beside a queue (ARGS='--rounds 9')
	$(BIN)/python -m benchmarks.fanout $(ARGS)

paired: $(STAMP) ## Measure what a pair of namespaces costs, and how quick it is (ARGS=--quick)
	$(BIN)/python -m benchmarks.paired $(ARGS)

proxied-links: $(STAMP) ## Measure what a server costs that is not the owner, and failovers (ARGS=--quick)
	$(BIN)/python -m benchmarks.proxied_links $(ARGS)

several-servers: $(STAMP) ## Measure what a message of a partitioned queue costs on one to four servers (ARGS=--quick)
	$(BIN)/python -m benchmarks.several_servers $(ARGS)

scale: $(STAMP) ## Model more servers and stores than one machine has, beside what was measured
	$(BIN)/python -m benchmarks.scale $(ARGS)

bench-spark: $(STAMP) ## Measure the pipeline on Spark beside its ceilings, and usage over 100 million records (ARGS=--quick); needs Java
	$(BIN)/python -m benchmarks.spark_rates $(ARGS)
	$(BIN)/python -m benchmarks.spark_usage $(if $(filter --quick,$(ARGS)),--records 10000000)

spark-cluster: $(STAMP) ## Try the pipeline on Spark's own cluster of two workers, and through Spark Connect; needs Java
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[spark-connect]'
	$(BIN)/python tools/spark_cluster.py $(ARGS)

WORLD ?= queues
CATCHING_SEEDS := tests/unit/simulation/catching_seeds.json
sim: $(STAMP) ## Simulate from seeds: SEED=7 for one, SEEDS=2000 for many, WORLD=servers or all for other simulations
	$(BIN)/python -m simulation.campaign --world $(WORLD) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),200)) $(ARGS)

# A bug's recorded seed is tried first. Some bugs are caught by one seed in a thousand, which a search of 300 misses.
sim-bugs: $(STAMP) ## See each planted bug caught, by its recorded seed or by a new one that is recorded (WORLD=...)
	$(BIN)/python -m simulation.campaign --world $(WORLD) --search-bugs --record $(CATCHING_SEEDS) $(ARGS)

killloop: $(STAMP) ## Kill a broker under SDK traffic, 1,000 times (KILLS=...)
	$(BIN)/python tools/killloop.py --kills $(or $(KILLS),1000) $(ARGS)

.PHONY: moves
moves: $(STAMP) ## Move fragments between three servers under SDK traffic, 1,000 times (MOVES=..., SEED=...)
	$(BIN)/python tools/cluster_moves.py --moves $(or $(MOVES),1000) --seed $(or $(SEED),1) $(ARGS)

faults: $(STAMP) ## Let faults of processes and disks strike under SDK traffic, 10 minutes each (MINUTES=...)
	$(BIN)/python tools/faults.py --minutes $(or $(MINUTES),10) $(ARGS)

cuts: $(STAMP) ## Cut networks of servers and databases in each pattern, with each fault, a minute each (MINUTES=..., WORST=6); as root on Linux
	$(BIN)/python tools/cuts.py --minutes $(or $(MINUTES),1) --seed $(or $(SEED),1) --worst $(or $(WORST),0) $(ARGS)

claim-kills: $(STAMP) ## Kill owners of queues, of three servers, and move stores while streams claim from them, 40 times (ROUNDS=...)
	DUOBUS_CLAIM_ROUNDS=$(or $(ROUNDS),40) $(BIN)/python -m pytest -q -s tests/integration/cluster/test_claims_over_servers.py

bench-kafka: $(STAMP) ## Measure rows into Spark from duobus beside Kafka, for a second of processor time (ARGS=--quick); needs Java and Maven
	$(BIN)/python -m benchmarks.spark_kafka $(ARGS)

fulldisk: $(STAMP) ## Fill the disk of a real store again and again, 10 minutes (SECONDS=...); as root on Linux
	$(BIN)/python tools/fulldisk.py --seconds $(or $(SECONDS),600) $(ARGS)

powercut: $(STAMP) ## Cut the power of a real store, 1,000 times (CUTS=...); as root on Linux
	$(BIN)/python tools/powercut.py --cuts $(or $(CUTS),1000) $(ARGS)

lake: $(STAMP) ## Capture to Delta by Spark and to Iceberg, the driver killed behind each commit (ARGS='--format delta'); needs Java and Maven
	$(BIN)/python tools/lake.py $(ARGS)

spark-kills: $(STAMP) ## Kill Spark's driver, its workers and the broker while a queue is captured, 50 times (KILLS=...); needs Java
	$(BIN)/python tools/spark_kills.py --kills $(or $(KILLS),50) $(ARGS)

.PHONY: upgrades
upgrades: $(STAMP) ## Earlier commits' code and today's by turns on data folders and over three servers, with more commits and messages
	DUOBUS_LONG_UPGRADES=1 $(BIN)/python -m pytest -q tests/integration/durability/test_upgrade_and_back.py \
		tests/integration/cluster/test_rolling_upgrade.py tests/integration/cluster/test_mixed_versions.py

javascript: $(STAMP) ## The JavaScript SDK and rhea against the broker; needs Node
	DUOBUS_REQUIRE_JAVASCRIPT=1 $(BIN)/python -m pytest -q tests/acceptance/javascript

samples: $(STAMP) ## The sample programs that the SDK publishes, those that sleep for minutes too; got from the registry
	DUOBUS_REQUIRE_SAMPLES=1 DUOBUS_LONG_SAMPLES=1 $(BIN)/python -m pytest -q tests/acceptance/samples

java: $(STAMP) ## The Java SDK against the broker; needs a JDK 17 or newer, and Maven
	DUOBUS_REQUIRE_JAVA=1 $(BIN)/python -m pytest -q tests/acceptance/java

go: $(STAMP) ## The Go SDK against the broker: programs of ours, and the tests in its module, unchanged (Linux); needs Go 1.25 or newer
	DUOBUS_REQUIRE_GO=1 DUOBUS_REQUIRE_LIVE_GO=1 $(BIN)/python -m pytest -q -s tests/acceptance/go tests/acceptance/live/test_live_go.py

proton: $(STAMP) ## Qpid Proton against the broker; needs a C compiler and cmake
	DUOBUS_REQUIRE_PROTON=1 $(BIN)/python -m pytest -q tests/acceptance/proton

python-live: $(STAMP) ## The live tests in the source package of the SDK for Python, unchanged; half an hour; Linux
	DUOBUS_REQUIRE_LIVE_PYTHON=1 $(BIN)/python -m pytest -q -s tests/acceptance/live/test_live_python.py

rust: $(STAMP) ## The live tests in the crate azservicebus, unchanged; needs Rust, a C compiler and OpenSSL; Linux
	DUOBUS_REQUIRE_LIVE_RUST=1 $(BIN)/python -m pytest -q -s tests/acceptance/live/test_live_rust.py

# The program is built from its Go module; another version gets a place of its own.
HELM_VERSION := v3.22.0
HELM := .build/helm-$(HELM_VERSION)/helm
$(HELM):
	@command -v go >/dev/null || { echo "make chart builds helm and needs Go 1.25 or newer" >&2; exit 1; }
	@echo "Building helm $(HELM_VERSION) ..." >&2
	GOBIN=$(CURDIR)/$(@D) go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

.PHONY: chart
chart: $(STAMP) $(HELM) ## Render and lint the chart for Kubernetes with helm, which is built from its Go module; needs Go
	DUOBUS_HELM=$(CURDIR)/$(HELM) $(BIN)/python -m pytest -q tests/unit/deploy tests/integration/deploy/test_chart_rendered.py

fuzz: $(STAMP) ## Ten minutes of hostile bytes for each target (SECONDS=...)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt -e '.[fuzz]' \
		|| echo "atheris cannot be had here; the search goes on without the guidance of coverage" >&2
	for target in $$($(BIN)/python fuzz/run.py --list); do \
		$(BIN)/python fuzz/run.py --target $$target --seconds $(or $(SECONDS),600) || exit 1; \
	done

schemathesis: $(STAMP) ## Requests drawn from the description of the HTTP side, thousands of them (EXAMPLES=...)
	@test -x .build/schemathesis/bin/schemathesis || { $(PYTHON) -m venv .build/schemathesis \
		&& .build/schemathesis/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5; }
	$(BIN)/python tools/schemathesis_run.py --examples $(or $(EXAMPLES),500)

mutants: $(STAMP) ## Change the code in 300 small ways a room and see whether a test notices (COUNT=..., SEED=..., ARGS='--rooms auth')
	$(BIN)/python tools/mutants.py --count $(or $(COUNT),300) --seed $(or $(SEED),19) $(ARGS)

docs: $(STAMP) ## Write the walk of a send; check links, that every option and metric is documented, and every page listed
	$(BIN)/python tools/trace_walk.py --write
	$(BIN)/python tools/check_docs.py

dist: $(STAMP) ## Wheel and source archive of the commit into dist/, checked, and installed with each extra
	$(BIN)/python -m tools.dist $(ARGS)
	DUOBUS_REQUIRE_DIST=1 $(BIN)/python -m pytest -q tests/integration/tools/test_dist.py

image: $(STAMP) ## Build the container image and run it; as root on Debian or Ubuntu: apt-get install buildah debootstrap
	DUOBUS_REQUIRE_IMAGE=1 $(BIN)/python -m pytest -q -s tests/acceptance/image

twins: $(STAMP) ## Write the synchronous forms of the client side, src/duobus/ha/sync
	$(BIN)/python tools/make_twins.py

format: $(STAMP) ## Put the code into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) .build .mypy_cache .ruff_cache .pytest_cache .hypothesis
