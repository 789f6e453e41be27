# `make` alone explains itself.
.DEFAULT_GOAL := help
.PHONY: help setup run demo quick test soak fuzz mutants lint macos-check fmt docs bench bench-quick bench-parts bench-instructions ui ui-check ui-test

# One build of everything that tests need: a binary built by itself would be built with other features
# of its libraries, and those again.
build_tests = cargo build --workspace --bin leasehold --tests
# The rooms whose tests need no service.
without_services = --workspace --exclude leasehold-testkit --exclude leasehold-blackbox \
	--exclude leasehold-fences --exclude leasehold-consumer --exclude leasehold-bench

help: ## this list
	@echo "Leasehold: who owns this work right now, until when and under which fencing token"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Start with 'make run'. Tests start private copies of Redis, PostgreSQL and RabbitMQ;"
	@echo "those that cut networks need root."

setup: ## install what is missing to build and to test (Debian packages, schemathesis)
	@scripts/setup test

run: ## build for trying things out, and serve
	@scripts/setup run
	@[ -x target/quickstart/leasehold ] || echo "The first build takes some minutes; later ones take seconds."
	cargo run --profile quickstart -p leasehold -- serve

demo: ## watch ownership move: cameras, pollers and sessions, with something killed every few seconds
	@scripts/setup demo
	cargo build --profile quickstart -p leasehold
	@scripts/demo --binary target/quickstart/leasehold

quick: ## tests that need no service: while you work
	@scripts/setup run
	@scripts/setup nextest
	cargo nextest run $(without_services) --cargo-quiet --profile quick

test: lint ## everything that must be green: format, lints, every scenario in short, examples in the docs
	@scripts/setup test
	@scripts/setup nextest
	$(build_tests)
	cargo nextest run --workspace
	cargo test --workspace --doc
	scripts/ui-test

ui: ## build the page into ui/dist, which is committed
	@scripts/setup test
	@scripts/ui-deps build
	cd ui && npm run --silent build

ui-check: ## check that ui/dist is what its source gives
	@scripts/setup test
	scripts/ui-check

ui-test: ## test the page in a browser
	@scripts/setup test
	$(build_tests)
	scripts/ui-test

soak: ## every scenario at full length, with new seeds: hours, by night
	@scripts/setup test
	@scripts/setup nextest
	$(build_tests)
	LEASEHOLD_TEST_LENGTH=soak cargo nextest run --workspace --profile soak

fuzz: ## ask a server everything its specification allows, for 10 minutes (LEASEHOLD_FUZZ_SECONDS)
	@scripts/setup test
	@scripts/setup nextest
	$(build_tests)
	LEASEHOLD_TEST_LENGTH=soak cargo nextest run --workspace --profile soak -E 'test(schemathesis)' --no-capture

mutants: ## plant bugs everywhere, one at a time, and print which test notices each
	@scripts/setup test
	@scripts/setup nextest
	scripts/mutants

lint: ## format, lints and packages, without running anything
	@scripts/setup lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/lua-check
	scripts/package-check

macos-check: ## check that the clock and the client compile for macOS, without its SDK
	scripts/macos-check

fmt: ## format the code
	cargo fmt --all

docs: ## the documentation of every crate
	cargo doc --workspace --no-deps

bench: ## the same work on Redis, etcd, PostgreSQL and Leasehold, then floods: tables here, plots in target/bench
	@scripts/setup bench
	cargo build --release -p leasehold -p leasehold-bench
	target/release/compare --length full
	target/release/heartbeat
	target/release/floods

bench-quick: ## the same, short: two minutes after the build
	@scripts/setup bench
	cargo build --release -p leasehold -p leasehold-bench
	target/release/compare --length quick

bench-parts: ## what single parts cost: engine and start-up, assignment, control plane, managers, sessions, floods, fan-out, polling
	@scripts/setup test
	cargo build --release -p leasehold -p leasehold-bench
	cargo run --release -p leasehold-bench --bin embedded
	cargo run --release -p leasehold-bench --bin rendezvous
	cargo run --release -p leasehold-bench --bin control
	cargo run --release -p leasehold-bench --bin heartbeat
	cargo run --release -p leasehold-bench --bin manager
	cargo run --release -p leasehold-bench --bin sessions
	cargo run --release -p leasehold-bench --bin floods
	cargo run --release -p leasehold-bench --bin fanout
	cargo run --release -p leasehold-bench --bin polling

bench-instructions: ## instructions per operation beside the noted ones: the same on a busy machine
	@scripts/setup instructions
	cargo build --release -p leasehold -p leasehold-bench --bin leasehold --bin instructions
	target/release/instructions
