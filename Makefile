# Every target sets libtorch up by itself (see src/torch/setup/libtorch.sh) and
# does nothing where that is done. TORCH=cpu|full chooses the install.
.PHONY: help train test build wheel dist mutations simulated-gpus bench links plans peers exported exported-memory fuzz peers-input input-verdicts scale kills check book pages playground screenshots tensorboard-check cuda-check setup clean features walk

help:
	@echo "make train    train a character-level GPT on Moby-Dick over two CPU stages"
	@echo "make build    leave the command at target/release/gpipe-rs"
	@echo "make test     run every test"
	@echo "make check    formatting, lints, documentation"
	@echo "make wheel    a Python wheel of the command: target/packages"
	@echo "make dist     an archive that runs where it is unpacked: target/packages"
	@echo "make walk     all ways in, as from a new clone: see src/packaging/walk.sh"
	@echo "make book     the book as a site: book/book/index.html"
	@echo "make bench    every benchmark; \`make peers\`: the same beside PyTorch and others"
	@echo
	@echo "Other targets (mutations, kills, links, scale, exported, cuda-check, ...): see the Makefile."

# Train a character-level GPT on Moby-Dick over two CPU stages.
# More flags: make train ARGS="--steps 1000 --devices cpu,cpu,cpu"
# Ctrl-C saves it and stops; make train ARGS="--resume runs/1" goes on.
train: build
	$${CARGO_TARGET_DIR:-target}/release/gpipe-rs train $(ARGS)

test: setup simulated-gpus
	$${CARGO_TARGET_DIR:-target}/simulated-cuda/self_test
	cargo test --workspace --locked
	for example in custom_schedule hello_pipeline plan_from_profile; do \
		$${CARGO_TARGET_DIR:-target}/debug/examples/$$example >/dev/null || exit 1; done

# Leaves out each wait, event and note to the allocator in turn, and writes the table of who
# notices into book/src/mutations.md. Some minutes.
mutations: setup simulated-gpus
	GPIPE_SIMULATE_GPUS=4 GPIPE_MUTATIONS=$(CURDIR)/book/src/mutations.md \
		cargo test --workspace --locked --test cuda every_call_that_is_left_out

# Leaves the command at target/release/gpipe-rs.
build: setup
	cargo build --release --locked $(FEATURES)

# A wheel for `pip install`, beside torch==2.11.*, and an archive with libtorch's own files in it (see
# src/packaging/pack.py): both in target/packages.
# `--version` of what is packed names the revision.
# Who installs these cannot build others, so they write PNG, too.
wheel dist: FEATURES = --features png
wheel dist: export GPIPE_REVISION ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)

wheel: ON_PAPER = $${CARGO_TARGET_DIR:-target}/on-paper
wheel: build
	cargo build --release --locked --no-default-features --features png --target-dir $(ON_PAPER)
	python3 src/packaging/pack.py wheel $${CARGO_TARGET_DIR:-target}/release/gpipe-rs target/packages \
		$(ON_PAPER)/release/gpipe-rs

dist: build
	python3 src/packaging/pack.py archive $${CARGO_TARGET_DIR:-target}/release/gpipe-rs target/packages

# All ways in, as somebody goes who has just been given a clone: before every release. An hour and a half on
# two cores. ARGS="--without test" leaves a step out, and src/packaging/walk.sh says what else there is.
walk:
	sh src/packaging/walk.sh $(ARGS)

# GPUs made of threads, for `gpipe-rs --simulate-gpus` and the CUDA tests (see
# src/simulated_cuda/README.md).
simulated-gpus: setup
	@sh src/simulated_cuda/build.sh

# Every benchmark, then one table of what they claim. On an idle machine: about 40 minutes.
bench: setup
	rm -f $${CARGO_TARGET_DIR:-target}/tmp/bench-*.json
	cargo bench --workspace --locked
	@python3 benches/summary.py $${CARGO_TARGET_DIR:-target}/tmp

# The same training here and in PyTorch, torchgpipe and DeepSpeed, sample by sample in
# turn, then one table (see benches/peers/README.md). ARGS="--w W3 --rounds 3" for a part.
peers: setup
	cargo build --release --locked --example peers_worker
	"$$(sh benches/peers/setup.sh)" benches/peers/compare.py $(ARGS)

# The same data loaded here, by tf.data and by PyTorch's DataLoader, in turn (see
# benches/peers-input/README.md). ARGS="--what d1,d3 --rounds 3" for a part.
peers-input: setup
	cargo build --release --locked --no-default-features --features train --example peers_input
	python3 benches/peers-input/compare.py $(ARGS)

# Bottlenecks made on purpose: what the diagnosis of the input says of each, and what its advice brings (see
# benches/README.md). On an idle machine: about five minutes. ARGS="slow disk" for a part.
input-verdicts: setup simulated-gpus
	GPIPE_SIMULATE_GPUS=1 cargo run --release --locked --no-default-features --features train --example input_verdicts -- $(ARGS)

# Steps over a link of 10 ms, of 1 Gbit/s, and of both, between two network namespaces, and what
# joining costs by the number of processes (see benches/README.md). The first needs root.
links: setup
	cargo build --release --locked --example links_worker
	python3 benches/links/links.py $${CARGO_TARGET_DIR:-target}/release/examples/links_worker $(ARGS)

# The plan for four processes on two nodes with a slow link between them, and the plans that it names
# next, measured. Needs root; two minutes.
plans: setup
	cargo build --release --locked --example links_worker
	python3 benches/links/plans.py $${CARGO_TARGET_DIR:-target}/release/examples/links_worker \
		examples/data/profiles/gpt.json $(ARGS)

scale: setup
	cargo build --release --locked --example links_worker
	python3 benches/links/scale.py $${CARGO_TARGET_DIR:-target}/release/examples/links_worker $(ARGS)

# Kills runs by SIGKILL at 200 random moments, and runs of several processes 200 times in named
# phases, and prints what came of it; then how long the others of a lost process are there.
kills: setup
	KILLS=200 PHASE_KILLS=200 cargo test --workspace --locked --test cli killed -- --nocapture
	WORLD_KILLS=100 cargo test --workspace --locked --test world -- --nocapture --test-threads 1 \
		commands namespaces killed_trainings

# Exports small models with PyTorch into target/exported, compares bits with what eager PyTorch
# computes there, and has Python load trained weights. FIXTURES=tests/fixtures/exported writes those of the repository anew.
FIXTURES = $(CURDIR)/target/exported
exported: setup
	"$$(sh benches/peers/setup.sh)" -W ignore tests/fixtures/exported/make.py "$(FIXTURES)"
	TORCH_PYTHON="$$(sh benches/peers/setup.sh)" GPIPE_EXPORTED="$(FIXTURES)" cargo test --workspace --locked --test exported

# Trains an exported program of 1.5 billion parameters over four processes, none of which may have
# as much memory as its weights take, and tells what each had. 12 GB of disk, 14 GB of memory.
LARGE = $(CURDIR)/target/large.pt2
exported-memory: build
	test -e "$(LARGE)" || "$$(sh benches/peers/setup.sh)" -W ignore benches/exported/decoder.py "$(LARGE)"
	python3 benches/exported/memory.py $${CARGO_TARGET_DIR:-target}/release/gpipe-rs "$(LARGE)" $(ARGS)

# Mutates exported programs, bytes and JSON, for ten minutes, then numbers in them, 100,000 times, each with
# one step between guarded pages, then the files of every source of data: each is read or refused.
fuzz: setup
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} cargo test --workspace --locked --release --test exported -- --nocapture mutations_for
	FUZZ_NUMBERS=$${FUZZ_NUMBERS:-100000} cargo test --workspace --locked --release --test exported -- --nocapture numbers::
	FUZZ_SECONDS=$${FUZZ_SECONDS:-600} cargo test --locked --release --features parquet --test library -- --nocapture data::fuzz::mutations_for

# Lints and tests of the sources that are not built by default: Parquet and Arrow, object stores.
SOURCES = --features parquet,object-store
features: setup
	cargo clippy --locked $(SOURCES) --lib --bins --test library --test cli -- -D warnings
	cargo test --locked $(SOURCES) -p gpipe-data
	cargo test --locked $(SOURCES) --test library -- data::
	cargo test --locked $(SOURCES) --test cli -- data_of_features

# Formatting, lints, documentation, and the builds with less: without libtorch, without a command.
check: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --no-default-features --features decide --all-targets --locked -- -D warnings
	cargo check --no-default-features --features torch --lib --examples --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Whether TensorBoard, from PyPI into a folder below target, reads what `train` writes.
tensorboard-check: setup
	test -x target/python/bin/python || python3 -m venv target/python
	target/python/bin/python -m pip install --quiet tensorboard==2.21.0
	TENSORBOARD_PYTHON=$(CURDIR)/target/python/bin/python cargo test --workspace --locked --test cli tensorboard -- --nocapture

# The book as a site: book/book/index.html. mdBook is built for it once.
book: setup target/tools/bin/mdbook
	cargo test --locked -p gpipe-book --test book
	target/tools/bin/mdbook build book

target/tools/bin/mdbook:
	cargo install mdbook --version 0.5.4 --locked --no-default-features --features search --root target/tools

# What in the book is made from code: the pages about commands and configuration, the
# pictures of timelines.
pages: setup
	GPIPE_WRITE_PAGES=1 cargo test --locked -p gpipe-partitioner --test published page::
	GPIPE_WRITE_PAGES=1 cargo test --locked -p gpipe-book --test book -- configuration:: pictures:: reference::

# The partitioner as WebAssembly for the book's playground: book/src/playground/module.js. rustup
# fetches the target wasm32-unknown-unknown.
playground:
	sh book/playground/build.sh

# The book's screenshots of pages, in light and dark. Needs a Chromium; no libtorch.
screenshots:
	sh book/screenshots.sh

# A folder with all that a machine with a GPU and PyTorch needs to check the CUDA part:
# target/cuda-check, packed beside it. See benches/cuda/README.md.
cuda-check: setup
	python3 benches/cuda/pack.py

setup:
	@sh src/torch/setup/libtorch.sh

clean:
	cargo clean
	rm -f .libtorch
