# `make help` lists the targets. Everything is built under target/ (or CARGO_TARGET_DIR).

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
CANVAS := $(TARGET)/release/canvas
LAB := $(TARGET)/release/lab
# What `make test` tests: the command as cargo's tests are built, the library inside optimised as ever.
TESTED := $(TARGET)/debug/canvas
PREFIX ?= /usr/local
MAN_DIR := $(DESTDIR)$(PREFIX)/share/man/man1
SHARE_DIR := $(DESTDIR)$(PREFIX)/share

TEST_PACKAGES := $(shell sed 's/\#.*//' tests/packages.txt 2>/dev/null) strace \
	$(shell /usr/bin/python3 -c 'import sys; print("libpython%d.%d-testsuite" % sys.version_info[:2])' 2>/dev/null)
DEMO_PACKAGES := redis-server redis-tools python3 iproute2 util-linux kmod
# `make demo DEMO_ARGS='--scale 0.2'` is a short one.
DEMO_ARGS ?=
FRESH_PACKAGES := debootstrap
BINDING_PACKAGES := gcc libc6-dev python3-dev python3-pip python3-setuptools python3-wheel openjdk-17-jdk-headless

.PHONY: help build lab install uninstall deb demo test test-unit test-interleavings test-e2e test-fresh test-miri \
	test-sanitizers test-slow sim bindings bench bench-quick lint deps-test deps-demo clean
.DEFAULT_GOAL := help

help: ## List the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | \
		while IFS="$$(printf '\t')" read -r name what; do printf '  make %-20s %s\n' "$$name" "$$what"; done

build: ## Build the canvas command, its library inside, optimised
	@command -v $(CARGO) >/dev/null || { echo "make: cargo is missing; install Rust from https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --release --locked --package canvas-cli
	@[ ! -x $(CANVAS) ] || { strip -o $(CANVAS).stripped $(CANVAS) && \
		printf 'canvas: %s bytes stripped, %s packages below it\n' $$(stat -c %s $(CANVAS).stripped) \
		$$($(CARGO) tree --locked --package canvas-cli --edges normal --prefix none | sed 's/ (.*//' | sort -u | tail -n +2 | wc -l); \
		rm -f $(CANVAS).stripped; }

lab: build ## Build the laboratory's command, which measures canvas (lab/README.md)
	$(CARGO) build --release --locked --package canvas-lab

bindings: ## Build the Python package and the Java archive of canvas.h under target/bindings (docs/API.md)
	$(call install,$(BINDING_PACKAGES))
	bindings/build $(TARGET)/bindings

install: build ## Install canvas, canvas.h with its library, manual pages and completions under PREFIX (/usr/local)
	api/build $(TARGET)/api $(PREFIX)
	install -D -m 644 api/canvas.h $(DESTDIR)$(PREFIX)/include/canvas.h
	install -D -m 644 $(TARGET)/api/libcanvas-api.so.1 $(DESTDIR)$(PREFIX)/lib/libcanvas-api.so.1
	ln -sf libcanvas-api.so.1 $(DESTDIR)$(PREFIX)/lib/libcanvas-api.so
	install -D -m 644 $(TARGET)/api/libcanvas-api.a $(DESTDIR)$(PREFIX)/lib/libcanvas-api.a
	install -D -m 644 $(TARGET)/api/canvas-api.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/canvas-api.pc
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
		$(SHARE_DIR)/fish/vendor_completions.d/canvas.fish \
		$(DESTDIR)$(PREFIX)/include/canvas.h $(DESTDIR)$(PREFIX)/lib/libcanvas-api.so.1 \
		$(DESTDIR)$(PREFIX)/lib/libcanvas-api.so $(DESTDIR)$(PREFIX)/lib/libcanvas-api.a \
		$(DESTDIR)$(PREFIX)/lib/pkgconfig/canvas-api.pc

deb: build ## Make a Debian package under target/deb (docs/OPERATING.md)
	CARGO=$(CARGO) etc/deb/build $(CANVAS) $(TARGET)/deb

demo: deps-demo lab ## Three scenes in a few minutes, and a report: redis beside zram, a donor killed, tenants
	python3 tests/demo $(DEMO_ARGS)

# One after the other even under -j: the parts load the machine and time out together.
TEST_STEPS := lint test-unit test-interleavings test-e2e
# One selection of packages, so that each dependency is built once (docs/TESTING.md).
CARGO_TEST = $(CARGO) test --locked --workspace --exclude canvas-preload
# What is built from nothing and thrown away needs no incremental cache: it is only written.
ifeq ($(CI),true)
export CARGO_INCREMENTAL := 0
endif
SHUTTLE := canvas-core/shuttle,canvas-shm/shuttle,canvas-direct/shuttle

test: ## All quick tests: style, units, interleavings, real programs (minutes)
	@$(MAKE) --no-print-directory deps-test
	@MAKE='$(MAKE)' tests/all $(TEST_STEPS)

# canvas-preload has no tests of its own: as a library it takes over the process that loads it.
# Twice as many at one time as there are processors: many tests wait for daemons most of the time.
# $(call units,SCALE): with the longest of the randomised tests SCALE times as long.
units = TMPDIR=$$(python3 tests/lib/scratch.py) && export TMPDIR && RUST_TEST_THREADS=$$((2 * $$(nproc))) \
	CANVAS_TEST_SCALE=$(1) $(CARGO_TEST) --no-fail-fast

test-unit: ## Unit, model and command-line tests
	$(call units,1)

test-interleavings: ## Lock-free parts under shuttle's scheduler
	$(CARGO_TEST) --features $(SHUTTLE) --test shuttle

test-e2e: ## Real and hostile programs under canvas, small sizes
	$(CARGO_TEST) --no-run --quiet
	tests/run --suite normal --canvas $(TESTED) --durations 20 --junitxml $(TARGET)/test-e2e.xml

test-fresh: ## README's build and demo in a bare Debian of its own (root; docs/TESTING.md)
	$(call install,$(FRESH_PACKAGES))
	tests/fresh

# The segment has half a million atomics: references to it are not followed one by one. It is mapped for good.
MIRI := -Zmiri-tree-borrows -Zmiri-tree-borrows-no-precise-interior-mut -Zmiri-permissive-provenance \
	-Zmiri-disable-isolation -Zmiri-ignore-leaks

test-miri: ## Tests of types, segment and core under Miri (nightly Rust)
	PROPTEST_CASES=2 MIRIFLAGS='$(MIRI)' $(CARGO) +nightly miri test --locked --features canvas-shm/std \
		-p canvas-types -p canvas-shm -p canvas-core --lib --test all

# $(call sanitized,SANITIZER,PACKAGES,OPTIONS): all but canvas-preload, which takes over the process that is watched.
sanitized = ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS='-Zsanitizer=$(1) --cfg canvas_sanitizer' $(CARGO) +nightly test \
	--locked --target x86_64-unknown-linux-gnu --target-dir $(TARGET)/$(1) $(3) $(2:%=-p canvas-%) --lib --test all
SANITIZED := types shm core direct disk donor agent

test-sanitizers: ## Unit tests under the address and thread sanitizers (nightly Rust)
	$(call sanitized,address,$(SANITIZED) sys)
	$(call sanitized,thread,$(SANITIZED),-Zbuild-std)

test-slow: deps-test lab ## The long tests: all programs, all modes, 10^7 steps of the pager model
	$(call units,8)
	CANVAS_TEST_SCALE=8 $(MAKE) --no-print-directory test-interleavings
	CANVAS_TEST_SCALE=400 $(CARGO) test --locked --release --package canvas-core --test all vm_model
	CANVAS_TEST_SCALE=250 $(CARGO) test --locked --release --package canvas-sim
	$(LAB) sim --full
	tests/run --suite slow --canvas $(CANVAS) --durations 20 --junitxml $(TARGET)/test-slow.xml

sim: lab ## Simulate pools of many hosts and print their figures (lab/SIMULATION.md)
	$(LAB) sim

bench: deps-test lab ## The pager's targets against zram and plain runs (docs/TARGETS.md)
	@mkdir -p lab/results
	$(LAB) run pager --out lab/results/$$(date +%Y%m%d-%H%M%S).jsonl

bench-quick: lab ## Measure built-in programs beside plain runs and zram, in about three minutes (lab/README.md)
	$(LAB) run quick

lint: ## Formatting, clippy, names in documents, and (where cargo-deny is installed) licences and advisories
	$(CARGO) fmt --all --check
	python3 tests/lib/documents.py
	CANVAS_SKIP_PRELOAD=1 $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@if ! command -v cargo-deny >/dev/null; then echo "lint: 1 skipped: cargo-deny is not installed (cargo install cargo-deny)"; \
		else $(CARGO) deny --all-features check bans licenses sources && \
		if $(CARGO) deny --all-features fetch db 2>/dev/null; then $(CARGO) deny --all-features check --disable-fetch advisories; \
		else echo "lint: 1 skipped: the database of advisories cannot be fetched"; fi; fi

# $(call install,PACKAGES): installs what is missing, with one update of the lists.
define install
@missing=; for p in $(1); do \
	[ "$$(dpkg-query -W -f='$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing="$$missing $$p"; \
done; \
[ -n "$$missing" ] || exit 0; \
command -v apt-get >/dev/null || { echo "make: no apt-get here; install these, or their tests are skipped:$$missing" >&2; exit 0; }; \
sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
[ -z "$$sudo" ] || command -v sudo >/dev/null || { echo "make: no root and no sudo here; have these installed, or what needs them is left out:$$missing" >&2; exit 0; }; \
echo "installing$$missing"; \
$$sudo apt-get update -q && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing || \
	{ [ -n "$$sudo" ] && echo "make: sudo did not do it; have these installed, or what needs them is left out:$$missing" >&2; }
endef

deps-test: ## Install the programs that the tests run (Debian packages; sudo when not root)
	$(call install,$(TEST_PACKAGES))
	python3 tests/vm/kernel.py

deps-demo: ## Install the programs that the demonstration runs
	$(call install,$(DEMO_PACKAGES))

clean: ## Remove what was built
	$(CARGO) clean
