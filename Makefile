# Everything runs from one virtual environment, made once and kept until its inputs change.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed

.PHONY: demo test test-min test-newest newest check lint format docs bench fuzz soak setup clean
.DEFAULT_GOAL := demo

demo: $(STAMP)  ## set everything up and run the main job
	$(BIN)/overspill demo

# Each worker takes up to 3 GiB of memory. Tests of a file share what it sets up, so a worker keeps
# its half in order, and hands on of the rest only once another has nothing left to do. Bytecode is
# kept, for the hundreds of interpreters that tests start; threads that wait leave the processor to
# the other worker's tests.
TEST_WORKERS ?= 2
test: $(STAMP)  ## set everything up and run the tests
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist worksteal

# Outside of CI: the lowest versions that pyproject.toml claims, with whatever else is newest, in an
# environment of their own. Left out is what wants the peers (Ray, pandas, polars, DuckDB), and files
# that the lowest pyarrow reads and cannot write.
MIN_VENV ?= .venv-min
MIN_BIN := $(MIN_VENV)/bin
MIN_TESTS ?= tests/kernels tests/storage tests/tensors tests/build tests/graph tests/pyg \
	tests/cli/test_command.py tests/cli/test_input_options.py tests/cli/test_bench.py \
	--ignore tests/build/test_outgoing.py --ignore tests/tensors/test_picklers.py \
	$(foreach rows,1 3 65536,--deselect \
	'tests/build/test_parquet_edges.py::test_text_of_every_kind[$(rows)-string_view]')
test-min: $(MIN_VENV)/.installed  ## run the core's tests with the lowest versions
	$(MIN_BIN)/python -m pytest --disable-warnings --numprocesses $(TEST_WORKERS) --dist worksteal $(MIN_TESTS)

$(MIN_VENV)/.installed: pyproject.toml constraints-min.txt
	test -x $(MIN_BIN)/python || $(PYTHON) -m venv $(MIN_VENV)
	$(MIN_BIN)/python -m pip install --quiet --constraint constraints-min.txt torch
	$(MIN_BIN)/python -m pip install --quiet --constraint constraints-min.txt --editable '.[pyg]' \
		hypothesis protobuf pytest pytest-timeout pytest-xdist safetensors scipy
	touch $@

# Outside of CI: the newest version of everything that installs, and every test. What differs from
# constraints.txt is listed first. Of torch the newest CPU build alone: what an index has later may
# bring gigabytes of CUDA, and is refused.
NEWEST_VENV ?= .venv-newest
NEWEST_BIN := $(NEWEST_VENV)/bin
NEWEST_TORCH ?= torch==2.13.0
NEWEST_TESTS ?= tests
test-newest: newest  ## run every test with the newest versions
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(NEWEST_BIN)/python -m pytest \
		--numprocesses $(TEST_WORKERS) --dist worksteal $(NEWEST_TESTS)

# Never up to date: the newest is a matter of today. Lightning lies apart, as below.
newest:
	test -x $(NEWEST_BIN)/pip || $(PYTHON) -m venv $(NEWEST_VENV)
	$(NEWEST_BIN)/python -m pip install --quiet '$(NEWEST_TORCH)'
	$(NEWEST_BIN)/python -c 'import torch; assert torch.version.cuda is None, "not a CPU build"'
	$(NEWEST_BIN)/python -m pip freeze | grep '^torch==' > $(NEWEST_VENV)/torch.txt
	PIP_CONSTRAINT=$(NEWEST_VENV)/torch.txt $(NEWEST_BIN)/python -m pip install --quiet --upgrade \
		--upgrade-strategy eager --editable '.[pyg,ray,dev]'
	$(NEWEST_BIN)/python -m pip install --quiet --no-deps --upgrade --target $(NEWEST_VENV)/lightning \
		lightning lightning-utilities pytorch-lightning torchmetrics
	-$(NEWEST_BIN)/python -m pip freeze --exclude-editable \
		| diff --ignore-case constraints.txt - | grep '^>'

# One processor each: both are single threads.
check: $(DOCS_STAMP)  ## lint and the documentation, side by side
	$(MAKE) --jobs 2 --output-sync=target lint docs

# Of pages, their blocks of code.
CHECKED := src tests benchmarks docs examples
lint: $(STAMP)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/ruff check --fix $(CHECKED)

# Whatever would be wrong on a page is an error: a link, an anchor, a name the reference lacks.
docs: $(DOCS_STAMP)  ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# BENCH_DIR must lie on the disk to be measured; the peers come with the first run, torch-sparse from
# its source. Results go to benchmarks/results, and from there into docs/performance.md.
BENCH_DIR ?= .
BENCH_STAMP := $(VENV)/.bench-installed
bench: $(BENCH_STAMP)  ## measure against peers and against the disk, in about 15 minutes
	$(BIN)/python -m benchmarks --dir $(BENCH_DIR); status=$$?; $(BIN)/python -m benchmarks.page && exit $$status

# One of them by name, at full size, as in `make bench-gather`; BENCH_OPTIONS may say more. One that
# fails leaves what is kept as it is.
bench-%: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.$* --dir $(BENCH_DIR) $(BENCH_OPTIONS) --json benchmarks/results/$*.new
	mv benchmarks/results/$*.new benchmarks/results/$*.json
	$(BIN)/python -m benchmarks.page

$(BENCH_STAMP): $(STAMP)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m benchmarks.torch_sparse_peer
	touch $@

# Outside of CI. atheris guides by coverage; where it cannot be installed, examples are by chance.
FUZZ_SECONDS ?= 600
fuzz: $(STAMP)  ## feed hostile files to every reader and parser
	-$(BIN)/python -m pip install --quiet --upgrade --target $(VENV)/fuzz atheris==3.0.0
	PYTHONPATH=$(VENV)/fuzz $(BIN)/python tests/fuzz.py --seconds $(FUZZ_SECONDS)

# Outside of CI, but for two minutes of it among the tests. Needs root.
SOAK_MINUTES ?= 60
soak: $(STAMP)  ## builds, loaders and spills on a small machine, killed at random
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(SOAK_MINUTES) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

setup: $(STAMP)

# pip with a constraints file that pins every version, build requirements included. Lightning lies
# apart, for one page: PyG imports it wherever it is found, in every process of every test.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet torch==2.13.0
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --editable '.[pyg,ray,dev]'
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --no-deps \
		--upgrade --target $(VENV)/lightning lightning lightning-utilities pytorch-lightning torchmetrics
	touch $@

$(DOCS_STAMP): $(STAMP)
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf build/site $(VENV) $(MIN_VENV) $(NEWEST_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
