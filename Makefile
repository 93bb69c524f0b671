# Each target makes its own environment on first use, from requirements.lock; a second call starts at once.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help env demo docs test test-all lint bench bench-turns bench-sync bench-rows bench-s3 simulate soak soak-rows matrix matrix-versions release clean

BIN := .venv/bin
JAVA_SOURCES := $(shell find java -name '*.java')

help:
	@echo 'make demo             three streams on one table, with turns and without; writes a report'
	@echo 'make test             lint, and each promise once; under 10 minutes; skips by name what this machine lacks'
	@echo 'make test-all         all that continuous integration runs: `make test` and the slow tests'
	@echo 'make env              only the environment: afterwards .venv/bin/lakegate works'
	@echo 'make lint             ruff, mypy, import-linter, and the words of code and pages'
	@echo 'make docs             the documentation as a site in .site/html, with search'
	@echo 'make bench            the measurements in benchmarks/'
	@echo 'make bench-turns      a turn, its hand-over and its take-over, beside the lock of kazoo; some minutes'
	@echo 'make bench-sync       ways to carry changes to a database with unique keys; about half an hour'
	@echo 'make bench-rows       statements of few rows, and of several writers, beside stock delta-spark; an hour'
	@echo 'make bench-s3         requests and milliseconds of a commit on S3, for each log store'
	@echo 'make simulate         the turn protocol explored in full'
	@echo 'make soak             turns under random faults: three Spark drivers, one ZooKeeper; 10 minutes and what is left'
	@echo 'make soak-rows        random statements from threads and drivers against their serial replay; about 15 minutes'
	@echo 'make matrix           the long tests: whole data sets, large matrices'
	@echo 'make matrix-versions  the tests on each Python and Spark version found here'
	@echo 'make release          with VERSION=0.2.0: version, changelog, tag, and the files to publish in dist/'
	@echo 'make clean            remove .tools, .venv, .demo and .matrix'

env: .venv/.installed

# Any Python from 3.11 on will do.
.tools/.installed:
	@python=$$(for p in python3 python3.13 python3.12 python3.11; do \
	    if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$p"; break; fi; done); \
	if [ -z "$$python" ]; then echo 'Python 3.11 or later was not found on PATH.' >&2; exit 7; fi; \
	echo "== .tools: the package installer uv (about 25 MB)"; \
	"$$python" -m venv .tools && .tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8' && touch $@

.venv/.synced: requirements.lock .tools/.installed
	@echo '== .venv: PySpark, Delta and the tools of the tests from requirements.lock (the first time about 750 MB to download; 1.7 GB on disk)'
	@test -x .venv/bin/python || .tools/bin/uv venv --quiet --python .tools/bin/python .venv
	@.tools/bin/uv pip sync --python .venv/bin/python --require-hashes requirements.lock
	@touch $@

define need-jdk
	@command -v javac >/dev/null || test -x "$${JAVA_HOME:-/nonexistent}/bin/javac" || { \
	  echo 'A JDK 17 or later was not found: Lakegate compiles a small jar when it is installed from source.' >&2; \
	  echo '  Debian, Ubuntu:  apt-get install openjdk-17-jdk-headless' >&2; \
	  echo '  macOS:           brew install openjdk@17' >&2; \
	  exit 7; }
endef

.venv/.installed: .venv/.synced pyproject.toml hatch_build.py $(JAVA_SOURCES)
	$(need-jdk)
	@echo '== lakegate itself, editable'
	@.tools/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e .
	@touch $@

# What the demo needs, and no tools of the tests; where their environment is there, it serves as well.
DEMO := $(if $(wildcard .venv/.installed),.venv,.demo)

.demo/.installed: .tools/.installed requirements.lock pyproject.toml hatch_build.py $(JAVA_SOURCES)
	$(need-jdk)
	@echo '== .demo: Lakegate, PySpark and Delta in the versions of requirements.lock (about 580 MB to download; 0.9 GB on disk)'
	@test -x .demo/bin/python || .tools/bin/uv venv --quiet --python .tools/bin/python .demo
	@.tools/bin/uv pip install --quiet --python .demo/bin/python --constraint requirements.lock -e '.[demo]'
	@touch $@

demo: $(DEMO)/.installed
	@$(DEMO)/bin/lakegate demo $(ARGS)

docs: env
	$(BIN)/python -m harness.site .site
	$(BIN)/zensical build --strict -f .site/mkdocs.yml

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m harness.words

# Two processes: much of the time a test waits. A file stays in one of them, with the servers it needs.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test: env
	@$(MAKE) --no-print-directory --jobs 2 lint .venv/tests.jsa
	$(PYTEST) -m 'not slow'

# One run of both sizes: a second one would start and warm up its JVMs and servers again.
test-all: env
	@$(MAKE) --no-print-directory --jobs 2 lint .venv/tests.jsa
	$(PYTEST)

.venv/tests.jsa: .venv/.installed
	@echo '== an archive of Java classes, for the many drivers that tests start'
	@$(BIN)/python -m tests.jvm_archive $@ 2>.venv/tests.jsa.log || { rm -f $@; tail -n 5 .venv/tests.jsa.log; \
	  echo 'It was not written; the tests take longer.'; }

bench: env
	$(BIN)/python -m benchmarks

bench-turns: env
	$(BIN)/python -m benchmarks turns

bench-sync: env
	$(BIN)/python -m benchmarks sync

bench-rows: env
	$(BIN)/python -m benchmarks quick rows coverage

bench-s3: env
	$(BIN)/python -m benchmarks s3

simulate: env
	LAKEGATE_MATRIX=1 $(BIN)/pytest tests/simulation

soak: env
	$(BIN)/python -m harness.turn_soak --seconds 600 --result benchmarks/results/turn_soak.json

soak-rows: env
	$(BIN)/python -m harness.soak --kind every --threads 6 --seconds 60 2>/dev/null
	$(BIN)/python -m harness.soak --kind plain,cdf --threads 3 --drivers 3 --disturbed --seconds 90 2>/dev/null

matrix: .venv/tests.jsa
	LAKEGATE_MATRIX=1 $(PYTEST) -m matrix

matrix-versions: env
	$(BIN)/python tests/matrix_versions.py

release: env
	$(BIN)/python -m harness.release "$${VERSION:?as in: make release VERSION=0.2.0}"

clean:
	rm -rf .tools .venv .demo .matrix
