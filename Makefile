# Every target sets libtorch up by itself (see src/torch/setup/libtorch.sh) and
# does nothing where that is done. TORCH=cpu|full chooses the install.
.PHONY: train test build bench check cuda-check setup clean

# Train a character-level GPT on Moby-Dick over two CPU stages.
# More flags: make train ARGS="--steps 1000 --devices cpu,cpu,cpu"
train: build
	target/release/gpipe-rs train $(ARGS)

test: setup
	cargo test --workspace --locked

# Leaves the command at target/release/gpipe-rs.
build: setup
	cargo build --release --locked

bench: setup
	cargo bench --workspace --locked

# Formatting, lints, documentation, and the build without libtorch.
check: setup
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --no-default-features --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# A folder with all that a machine with a GPU and PyTorch needs to check the CUDA part:
# target/cuda-check, packed beside it. See benches/cuda/README.md.
cuda-check: setup
	python3 benches/cuda/pack.py

setup:
	@sh src/torch/setup/libtorch.sh

clean:
	cargo clean
	rm -f .libtorch
