# `make help` lists the targets. Everything is built under target/ (or CARGO_TARGET_DIR).

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
CANVAS := $(TARGET)/release/canvas
PREFIX ?= /usr/local
MAN_DIR := $(DESTDIR)$(PREFIX)/share/man/man1
SHARE_DIR := $(DESTDIR)$(PREFIX)/share

# RDMA is built in where its bindings can be made (cmake and libclang); RDMA= leaves it out.
RDMA ?= $(shell command -v cmake >/dev/null && ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib*/libclang*.so* \
	/usr/lib/*/libclang*.so* 2>/dev/null | grep -q . && echo rdma)

TEST_PACKAGES := $(shell sed 's/\#.*//' tests/packages.txt 2>/dev/null) strace
DEMO_PACKAGES := redis-server redis-tools python3

# Steps of the page model in `make test-slow`; `make test` takes the model's own 10^5.
SLOW_OPS := 10000000

.PHONY: help build install uninstall demo test test-unit test-interleavings test-e2e test-slow sim \
	bench bench-quick lint deps-test deps-demo clean
.DEFAULT_GOAL := help

help: ## List the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | \
		while IFS="$$(printf '\t')" read -r name what; do printf '  make %-20s %s\n' "$$name" "$$what"; done

build: ## Build the canvas command, its library inside, optimised
	@command -v $(CARGO) >/dev/null || { echo "make: cargo is missing; install Rust from https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --release --locked --package canvas-cli --features '$(RDMA)'
	@[ -n "$(RDMA)" ] || echo "make: built without RDMA (for it: cmake and libclang-dev, then make build again)"

install: build ## Install canvas, its manual pages and completions under PREFIX (/usr/local)
	install -D -s -m 755 $(CANVAS) $(DESTDIR)$(PREFIX)/bin/canvas
	$(CANVAS) man --dir $(MAN_DIR)
	install -d $(SHARE_DIR)/bash-completion/completions $(SHARE_DIR)/zsh/site-functions \
		$(SHARE_DIR)/fish/vendor_completions.d
	$(CANVAS) completions bash > $(SHARE_DIR)/bash-completion/completions/canvas
	$(CANVAS) completions zsh > $(SHARE_DIR)/zsh/site-functions/_canvas
	$(CANVAS) completions fish > $(SHARE_DIR)/fish/vendor_completions.d/canvas.fish

uninstall: ## Remove what `make install` installed
	rm -f $(DESTDIR)$(PREFIX)/bin/canvas $(MAN_DIR)/canvas.1 $(MAN_DIR)/canvas-*.1 \
		$(SHARE_DIR)/bash-completion/completions/canvas $(SHARE_DIR)/zsh/site-functions/_canvas \
		$(SHARE_DIR)/fish/vendor_completions.d/canvas.fish

demo: deps-demo build ## Run redis at 25 % local memory beside plain and zram, and show a table
	tests/demo

# One after the other even under -j: the parts load the machine and time out together.
test: ## All quick tests: style, units, interleavings, real programs (minutes)
	@$(MAKE) --no-print-directory deps-test
	@$(MAKE) --no-print-directory build
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-interleavings
	@$(MAKE) --no-print-directory test-e2e

# canvas-preload has no tests of its own: as a library it takes over the process that loads it.
test-unit: ## Unit, model and command-line tests
	$(CARGO) test --locked --workspace --exclude canvas-preload --no-fail-fast

test-interleavings: ## Lock-free parts under shuttle's scheduler
	$(CARGO) test --locked --package canvas-pager --features shuttle --test shuttle --test shuttle_slots
	$(CARGO) test --locked --package canvas-swap --features shuttle --test shuttle
	$(CARGO) test --locked --package canvas-shm --features shuttle --test shuttle

test-e2e: ## Real and hostile programs under canvas, small sizes
	tests/run --suite normal --canvas $(CANVAS)

test-slow: deps-test build ## The long tests: all programs, all modes, 10^7 steps of the page model
	CANVAS_TEST_OPS=$(SLOW_OPS) $(CARGO) test --locked --release --package canvas-pager --test page_model
	CANVAS_SIM_CASES=2000 $(CARGO) test --locked --release --package canvas-sim
	$(CARGO) run --locked --release --package canvas-sim -- --full
	tests/run --suite slow --canvas $(CANVAS)

sim: ## Simulate pools of many hosts and print their figures (docs/SIMULATION.md)
	$(CARGO) run --locked --release --package canvas-sim

bench: deps-test build ## The pager's targets against zram and plain runs (docs/TARGETS.md)
	@mkdir -p bench/results
	$(CANVAS) bench pager --out bench/results/$$(date +%Y%m%d-%H%M%S).jsonl

bench-quick: build ## Measure built-in programs beside plain runs and zram, in about three minutes (docs/BENCH.md)
	$(CANVAS) bench quick

lint: ## Formatting, clippy, and (where cargo-deny is installed) licences and advisories
	$(CARGO) fmt --all --check
	CANVAS_SKIP_PRELOAD=1 $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny --all-features check; \
		else echo "lint: 1 skipped: cargo-deny is not installed (cargo install cargo-deny)"; fi

# $(call install,PACKAGES): installs what is missing, with one update of the lists.
define install
@missing=; for p in $(1); do \
	[ "$$(dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing="$$missing $$p"; \
done; \
[ -n "$$missing" ] || exit 0; \
command -v apt-get >/dev/null || { echo "make: no apt-get here; install these, or their tests are skipped:$$missing" >&2; exit 0; }; \
sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
echo "installing$$missing"; \
$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing
endef

deps-test: ## Install the programs that the tests run (Debian packages; sudo when not root)
	$(call install,$(TEST_PACKAGES))
	python3 tests/vm/kernel.py

deps-demo: ## Install the programs that the demonstration runs
	$(call install,$(DEMO_PACKAGES))

clean: ## Remove what was built
	$(CARGO) clean
