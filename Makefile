# What a newcomer needs: make demo, make test. The rest is listed by make help.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3.11)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
# Each worker, and hundreds of Pythons that the tests start, would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: $(shell grep -hoE '^[a-z0-9-]+:' $(MAKEFILE_LIST) | tr -d :)

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

setup: $(STAMP) ## Install everything into .venv (about 2 GB, a minute or two)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, 3.12 or 3.13, or name one with make PYTHON=/path/to/python3.13"; exit 1; }
	@echo "Installing into $(VENV): about 2 GB (Spark, Dagster, the tools), once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[orchestration,fast,feed,queue]' --group dev
	@# The S3 server that the tests talk to pins libraries of its own, so it gets its own environment.
	$(PYTHON) -m venv .venv-ministack
	.venv-ministack/bin/python -m pip install --quiet --disable-pip-version-check ministack==1.5.33
	@touch $(STAMP)

java:
	@command -v java >/dev/null || { echo "Java is missing, and Spark needs it: install OpenJDK 17 (on Debian: apt-get install openjdk-17-jre-headless) and try again."; exit 1; }

demo: java setup ## Fill a local store with real input, verify it through Dagster and Spark, show what was found
	$(BIN)/python -m examples.demo

dev: java setup ## Open the UI on the demo's store: http://127.0.0.1:3000
	$(BIN)/python -m examples.demo --dev

# In parallel workers, each with an S3 server of its own; three more than there are cores, as many tests mostly wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 3)
PYTEST := $(BIN)/pytest --numprocesses=$(WORKERS) --maxprocesses=5 --dist=loadgroup

# Of the slow tests, which fifth: another one with each commit. "all" runs all, as CI does.
PART ?= $(shell expr $$(git rev-list --count HEAD 2>/dev/null || echo 0) % 5)
test: export WAL3_TEST_PART = $(PART)
test: java setup ## What must hold: linters, types, the quick tests and a fifth of the slow ones (ten minutes on two cores); PART=all: all
	@# Beside the linters, the test modules are compiled once, and not by each worker; beside the tests, types are checked.
	@$(BIN)/pytest --collect-only -qq > /dev/null & compiled=$$!; trap 'kill $$compiled' INT TERM; \
	  $(LINT) || { kill $$compiled; exit 1; }; wait $$compiled; true
	@$(BIN)/mypy & types=$$!; $(PYTEST) -m "not repeat and not cluster"; tests=$$?; wait $$types && exit $$tests

test-all: export WAL3_TEST_WHOLE := 1
test-all: override PART = all
test-all: test test-cluster ## The same, then the specification on every kind of store, faults at every call, and deliberate defects
	$(PYTEST) -m repeat

test-cluster: java setup ## Spark on a master and two workers of its own: each job, killed executors, a lost worker, drivers thought dead (ten minutes)
	$(BIN)/pytest tests/cluster

test-abuse: java setup ## Dagster killed, doubled, cut off from the store, its storage deleted, its clock set; part of test-all
	$(BIN)/pytest tests/abuse

test-deployment: setup ## The files for Compose, Kubernetes, Dagster+ and Prometheus; the image's steps in an empty environment; part of test-all
	$(BIN)/pytest tests/deployment

check: setup lint types ## The daily loop, three minutes on two cores: linters, types, the quick tests
	$(PYTEST) -m "not slow and not spark and not repeat and not cluster" -o faulthandler_timeout=120

LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports --no-logo && $(BIN)/deptry . && $(BIN)/vulture
lint: setup
	$(LINT)

types: setup
	$(BIN)/mypy

test-s3-real: setup ## The store suite, the S3 specification and the policies on a real server: WAL3_TEST_S3_ENDPOINT, or radosgw
	tests/real_s3/run.sh $(BIN)/pytest

SEEDS ?= 2000
FIRST ?= 0
sim: setup ## Simulated worlds: make sim SEEDS=2000 FIRST=0; VIEWS=1: of subscriptions and consumers by key; QUEUES=1: of delay queues; NAMED=1: of appends with a name; LIVES=1: of logs that are migrated, copied and restored
	$(BIN)/python -m tests.faults.campaign --first $(FIRST) --seeds $(SEEDS) $(if $(filter 1,$(VIEWS)),--views)$(if $(filter 1,$(QUEUES)),--queues)$(if $(filter 1,$(NAMED)),--named)$(if $(filter 1,$(LIVES)),--lives)

sim-coverage: setup ## Which branches of the protocol the simulated worlds take
	$(BIN)/coverage run --branch --concurrency=greenlet --include='wal3_core/log/**,wal3_core/store/documents/*,wal3_core/format/manifest.py,wal3_core/log/tree/shape.py' \
	  -m tests.faults.campaign --processes 1 --first $(FIRST) --seeds $(SEEDS) > /dev/null
	$(BIN)/coverage report --show-missing

crashes: setup ## Every store call of every scenario with every fault; PAIRS=1 adds a second one after an ambiguous one
	$(BIN)/python -m tests.faults.crashes $(if $(filter 1,$(PAIRS)),--pairs)
	WAL3_TEST_WHOLE=1 $(BIN)/pytest tests/queue/test_crashes.py -o faulthandler_timeout=0

mutants: setup ## How many simulated worlds each deliberate defect takes to be found; QUEUES=1, NAMED=1, LIVES=1: those of delay queues, of appends with a name, of migrations and copies
	$(BIN)/python -m tests.faults.campaign --sensitivity --seeds 1000 $(if $(filter 1,$(QUEUES)),--queues)$(if $(filter 1,$(NAMED)),--named)$(if $(filter 1,$(LIVES)),--lives)

canary: setup ## A campaign that must fail: it succeeds when the defect it carries is found
	$(BIN)/python -m tests.faults.campaign --seeds $(SEEDS) --canary --mutant "an unanswered CAS is taken for failed"

CASES ?= 50000
fuzz: setup ## Damaged and hostile Parquet files: make fuzz CASES=50000 FIRST=0
	WAL3_FUZZ_CASES=$(CASES) WAL3_FUZZ_FIRST=$(FIRST) $(BIN)/pytest tests/hostile/test_parquet_fuzz.py -o faulthandler_timeout=0

kills: setup ## 1,000 killed writers, crowds of writers, 10,000 of one append, and a faulty network
	WAL3_TEST_KILLS=1000 WAL3_TEST_SEEDS=20 WAL3_TEST_APPENDS=400 $(BIN)/pytest tests/processes -o faulthandler_timeout=0
	WAL3_TEST_WRITERS=10000 $(BIN)/pytest tests/spec/append/test_short_writers.py -o faulthandler_timeout=0

queue-kills: setup ## The broker of a delay queue killed 100 times under load
	WAL3_TEST_QUEUE_KILLS=100 $(BIN)/pytest tests/processes/test_queue_kill.py -o faulthandler_timeout=0

power: setup ## Power cuts at every step of the local store
	WAL3_TEST_WHOLE=1 WAL3_POWER_EVERY_STEP=1 $(BIN)/pytest tests/power

bench: setup ## The figures, each beside its peer or limit
	PYTHONPATH=. $(BIN)/python benchmarks/bench.py

bench-maintenance: setup ## Append latency while another process changes the manifest
	PYTHONPATH=. $(BIN)/python benchmarks/maintenance.py

bench-snapshots: setup ## The manifest's tree up to 10^8 fragments: what opening, appending and scanning cost
	PYTHONPATH=. $(BIN)/python benchmarks/snapshots.py

bench-collection: setup ## A log of 200,000 fragments is collected while it grows; objects compared with what is reachable
	PYTHONPATH=. $(BIN)/python benchmarks/collection.py
	PYTHONPATH=. $(BIN)/python benchmarks/collection_requests.py

bench-reading: setup ## The first record and a full walk of logs of up to 100,000 fragments: requests, round trips, memory
	PYTHONPATH=. $(BIN)/python benchmarks/reading.py

bench-listing: setup ## 10,000 logs listed at 30 ms a request, of few and of many objects
	PYTHONPATH=. $(BIN)/python -m benchmarks.listing 10000 0.03 2
	PYTHONPATH=. $(BIN)/python -m benchmarks.listing 10000 0.03 100

bench-hashing: setup ## Records hashed in SIMD lanes beside hashlib: setsums, appends, verified scans
	PYTHONPATH=. $(BIN)/python benchmarks/hashing.py

bench-fleet: setup ## Many logs in one process: memory, throughput, fairness, what marking adds (some ten minutes)
	PYTHONPATH=. $(BIN)/python benchmarks/fleet.py

bench-compaction: java setup ## Key compaction on Spark beside a plain aggregation; bytes moved; memory (10,000,000 records)
	PYTHONPATH=. $(BIN)/python benchmarks/key_compaction.py

bench-keyed: setup ## Keyed logs beside SlateDB (pip install slatedb): appends, scans, counts, lag; of 1,000 and of 1,000,000 keys
	PYTHONPATH=. $(BIN)/python benchmarks/keyed.py

bench-queue: setup ## A delay queue beside litequeue, persist-queue (pip install both) and beanstalkd (apt-get install it)
	PYTHONPATH=. $(BIN)/python benchmarks/delay_queue.py

bench-feed: setup ## Replay rate of a feed; publish to receive, with and without it, beside plain fan-out
	PYTHONPATH=. $(BIN)/python benchmarks/feed.py

bench-latency: setup ## Latency, requests and price of appends at S3's latencies, in simulated time (some ten minutes)
	PYTHONPATH=. $(BIN)/python -m benchmarks.latency

bench-contention: setup ## Processes that append to one log at once, beside one: on a directory, and at S3's latencies
	PYTHONPATH=. $(BIN)/python -m benchmarks.contention
	PYTHONPATH=. $(BIN)/python -m benchmarks.contention --simulated --seconds 60

bench-peers: setup ## A log beside SlateDB, SQLite, litequeue and persist-queue, on disk and on S3: appends, replay, bytes (pip install them)
	PYTHONPATH=. $(BIN)/python -m benchmarks.peers

bench-cluster: java setup ## Spark on two workers: balance of tasks over skewed logs, beside spark.read.parquet; planning 10^6 fragments
	PYTHONPATH=. $(BIN)/python -m benchmarks.cluster

bench-dagster: java setup ## What Dagster takes as a store grows: requests of each sensor, memory; from when on Spark is quicker
	PYTHONPATH=. $(BIN)/python benchmarks/dagster_growth.py --fragments 300000
	PYTHONPATH=. $(BIN)/python -m benchmarks.spark_or_not

bench-startup: setup ## How long imports, wal3 --help, a list of 2,000 logs and a completion take
	PYTHONPATH=. $(BIN)/python benchmarks/startup.py

docs: setup ## The documentation site, into site/; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html; for its search, run: $(BIN)/python -m http.server --directory site --bind 127.0.0.1 8000"

diagrams: setup ## Draw the diagrams of the pages for the site; needs Chromium
	PYTHONPATH=. $(BIN)/python docs/pictures.py diagrams

pictures: java setup ## Make the documentation's pictures again: diagrams, Dagster's UI after the demo, Spark's; needs Chromium
	PYTHONPATH=. $(BIN)/python docs/pictures.py

history: setup ## 100,000 file changes of a git history through the log and back, compared with its tree
	PYTHONPATH=. $(BIN)/python benchmarks/git_history.py

clean: ## Remove the environments, the demo and what builds have left
	rm -rf $(VENV) .venv-ministack .demo build dist site *.egg-info
