# `make` alone explains itself.
.DEFAULT_GOAL := help
.PHONY: help setup run test fuzz lint fmt docs bench

help: ## this list
	@echo "Leasehold: who owns this work right now, until when and under which fencing token"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Start with 'make run'. Tests start private copies of Redis, PostgreSQL and RabbitMQ;"
	@echo "those that cut networks need root."

setup: ## install what is missing to build and to test (Debian packages, schemathesis)
	@scripts/setup test

run: ## build and serve
	@scripts/setup run
	cargo run --release -p leasehold -- serve

test: lint ## everything that must be green: format, lints, tests, examples in the docs
	@scripts/setup test
	@command -v cargo-nextest >/dev/null 2>&1 || cargo install cargo-nextest --locked
	cargo build --workspace --bin leasehold
	cargo nextest run --workspace
	cargo test --workspace --doc

fuzz: ## ask a server everything its specification allows, for 10 minutes (LEASEHOLD_FUZZ_SECONDS)
	@scripts/setup test
	cargo build --workspace --bin leasehold
	LEASEHOLD_FUZZ_SECONDS=$${LEASEHOLD_FUZZ_SECONDS:-600} cargo nextest run --workspace -E 'package(leasehold-blackbox) & test(schemathesis)' --no-capture

lint: ## format and lints, without running anything
	@scripts/setup run
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

fmt: ## format the code
	cargo fmt --all

docs: ## the documentation of every crate
	cargo doc --workspace --no-deps

bench: ## measure
	@scripts/setup test
	cargo build --release -p leasehold -p leasehold-bench
	cargo run --release -p leasehold-bench --bin embedded
	cargo run --release -p leasehold-bench --bin postgres
	cargo run --release -p leasehold-bench --bin redis
	cargo run --release -p leasehold-bench --bin rendezvous
	cargo run --release -p leasehold-bench --bin control
	cargo run --release -p leasehold-bench --bin sessions
