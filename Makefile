# make demo | test | lint | bench: each sets up its own environment in .venv (Python 3.10 or newer as `python3`).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# What `make test` chooses, by the markers in pyproject.toml.
TESTS := not long and not thorough

PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))

.PHONY: demo test test-all test-long test-tools lint bench bench-faults bench-fleet bench-engines corpus corpus-needs bench-hosts bench-healthy docs docs-pictures clean
.NOTPARALLEL:

$(READY): pyproject.toml constraints.txt $(PACKAGES:%=%/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[dev]' $(PACKAGES:%=--editable './%[dev]')
	touch $@

demo: $(READY)  ## a small real training job gets slow and names its own cause
	$(BIN)/eroica demo --fault slow-loader --worker 2

test: $(READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --durations 20 -m "$(TESTS)"

test-all: TESTS := not long
test-all: test  ## the product's tests and those of every package
	@failed=; for package in $(PACKAGES); do echo "== $$package"; $(MAKE) -C $$package test-all || failed="$$failed $$package"; done; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

test-long: $(READY)  ## the real jobs that take too long for `make test`
	$(BIN)/python -m pytest --numprocesses 1 -m long

TOOLS := .venv-tools
test-tools:  ## callbacks in the frameworks themselves, and the table of docs/tools.md; some 3 GB, an hour
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet -c constraints.txt -c constraints-tools.txt torch
	$(TOOLS)/bin/python -m pip install --quiet -c constraints.txt -c constraints-tools.txt --editable '.[mcp,otel]' pytest pytest-timeout \
	transformers accelerate lightning trl datasets 'ray[default,train]' torch_geometric deepspeed tensorboard mlflow-skinny wandb
	$(TOOLS)/bin/python -m pytest tests/integrations
	$(TOOLS)/bin/python benchmarks/tools.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/budgets.py
	@set -e; for package in $(PACKAGES); do echo "== $$package"; \
	$(BIN)/mypy --config-file pyproject.toml $$package/src; \
	$(BIN)/lint-imports --no-cache --config $$package/pyproject.toml; done

bench: $(READY) test-long  ## long tests, demo faults, overhead, windows, an hour of a healthy job, reading traces; raw results are kept
	$(BIN)/python benchmarks/demo_faults.py --out benchmarks/results/demo_faults.jsonl
	$(BIN)/python benchmarks/overhead.py --json benchmarks/results/overhead.json
	$(BIN)/python benchmarks/window.py --json benchmarks/results/window.json
	$(BIN)/python benchmarks/healthy.py --json benchmarks/results/healthy.json
	$(BIN)/python benchmarks/reliability.py
	$(BIN)/python benchmarks/reading.py --json benchmarks/results/reading.json
	$(BIN)/python benchmarks/kernels.py --json benchmarks/results/kernels.json
	$(BIN)/python benchmarks/scale.py --json benchmarks/results/scale.json
	$(BIN)/python benchmarks/folder.py --json benchmarks/results/folder.json
	$(BIN)/python benchmarks/fuzz_traces.py --json benchmarks/results/fuzz_traces.json
	$(BIN)/python benchmarks/written_folders.py --json benchmarks/results/written_folders.json

PART ?= 1/1
SEEDS ?= 0,1
bench-faults: $(READY)  ## how often the verdict is right: hours; in parts (PART=1/4), goes on where it was stopped
	mkdir -p benchmarks/results/faults
	$(BIN)/python benchmarks/faults.py --out benchmarks/results/faults/runs.jsonl --part $(PART) --seeds $(SEEDS) || true
	$(BIN)/python benchmarks/accuracy_page.py

bench-fleet: $(READY)  ## the fleet's service: a thousand jobs, pages over 100,000 verdicts, random kills, an hour's soak; quiet machine
	$(MAKE) -C packages/fleet bench
	$(BIN)/python benchmarks/large_job.py --agents 1256 --json benchmarks/results/large_job.json

bench-engines: $(READY)  ## windows judged here and on Ray, which is installed for it; most of an hour
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[ray]'
	$(BIN)/python benchmarks/engines.py --json benchmarks/results/engines.json

AGAINST ?=
corpus-needs: $(READY)  ## which kept windows need which part of diagnosis: an hour or two
	$(BIN)/python benchmarks/corpus_needs.py --out build/corpus-needs.jsonl --page build/corpus-needs.md

corpus: $(READY)  ## every kept window judged by the present rules, and with AGAINST=COMMIT compared with that one's: minutes
	$(BIN)/python benchmarks/corpus_judge.py $(if $(AGAINST),--against $(AGAINST))

bench-hosts: $(READY)  ## the same for faults of one of three hosts, which are network namespaces: needs root
	mkdir -p benchmarks/results/faults
	$(BIN)/python benchmarks/host_faults.py --out benchmarks/results/faults/hosts.jsonl --seeds $(SEEDS) || true
	$(BIN)/python benchmarks/accuracy_page.py

bench-healthy: $(READY)  ## 300 windows opened by hand on healthy jobs: most of an hour
	mkdir -p benchmarks/results/faults
	$(BIN)/python benchmarks/healthy_windows.py --out benchmarks/results/faults/windows.jsonl || true
	$(BIN)/python benchmarks/accuracy_page.py

docs: $(READY)  ## the site, in build/site, without a network; its reference is made from the code
	$(BIN)/python docs/make_settings.py
	$(BIN)/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

docs-pictures: $(READY)  ## pictures of three real jobs in the documents (Chromium and tmux are needed)
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python benchmarks/reliability.py --write-docs

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache eroica-report
