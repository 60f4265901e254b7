# `make run` shows scxprof on a workload with known sharing; `make test` runs all tests that this machine allows.
# Both install missing build dependencies, as `make deps` does. A plain `make` builds, and says what is missing for that. `make help` lists all targets.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=
ARGS ?=
FUZZ_SECONDS ?= 30
SECONDS ?= 1800
SAMPLES ?= 100000
REV ?= HEAD~1
KERNELS ?= bookworm trixie sid
BINARY ?= $(TARGET)/release/scxprof
BIN = $(DESTDIR)$(PREFIX)/bin
SHARE = $(DESTDIR)$(PREFIX)/share
UNITS = $(DESTDIR)$(PREFIX)/lib/systemd/system
# The manual pages bear the date of the last commit, where this is a checkout, and never that of the build.
MAN_DATE = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null))
TARGET = $(or $(CARGO_TARGET_DIR),target)

# Where rustup puts cargo, which a fresh shell may not know yet.
export PATH := $(PATH):$(HOME)/.cargo/bin
export FUZZ_SECONDS KERNELS

.PHONY: build run test screenshots soak test-long test-dist test-stacks-long truth verify-hardware test-vm test-arm64 test-schedulers proof check-upstream lint fmt bench bench-against bench-big-host versus-perf fuzz miri doc install uninstall dist deb rpm deps check clean help
.DEFAULT_GOAL := build
# Two targets at once would wait for each other's cargo, and the packages share a directory.
.NOTPARALLEL:

build: check ## Build the release binary (the default)
	$(CARGO) build --locked --release

run: deps ## Profile the example workload and compare the result with the truth (ARGS="--source faults")
	$(CARGO) build --locked --profile demo --features demo --bins
	@scripts/demo.sh $(ARGS)

test: ## Run every test and check that this machine allows
	@scripts/deps.sh test
	@scripts/test.sh

soak: deps ## Sample this host under a load that comes and goes, and check that nothing grows (SECONDS=1800)
	SOAK_SECONDS=$(SECONDS) $(CARGO) test --locked --test alone tables_stay_flat -- --nocapture

test-stacks-long: deps ## Check 100,000 samples of programs that replace each other all the time: each in its own program (SAMPLES=100000)
	SCXPROF_STORM_SAMPLES=$(SAMPLES) $(CARGO) test --locked --test suite no_sample_belongs_to_another_program -- --nocapture

test-long: deps ## Run in full the tests that `make test` runs in part: more streams to cluster, more instructions to recover
	SEEDS=20 $(CARGO) test --locked --test suite -- --show-output groups_are_found
	SCXPROF_STEPS=20000 $(CARGO) test --locked -p scxprof-recover --test operand -- --show-output
	CARGO_PROFILE_DEV_OPT_LEVEL=2 $(CARGO) test --locked -p scxprof-recover --lib -- --ignored

test-dist: deps ## Check archives, packages, image and crates: built, and run where there is nothing else
	$(CARGO) test --locked --test suite package:: -- --include-ignored --show-output

truth: ## Print how right the configuration is on programs with known sharing (ARGS="--beside quiet hotfield hash")
	@scripts/deps.sh truth
	@CARGO="$(CARGO)" scripts/truth.sh $(ARGS)

verify-hardware: deps ## Compare a PEBS, IBS or SPE host with a known workload and with perf, and print a report (SOURCE=ibs; docs/verify-hardware.md)
	$(CARGO) build --locked --profile demo --features demo --bins
	@scripts/verify-hardware.sh

screenshots: ## Make the pictures of the report page and of top in docs/screenshots again (as root, with Chromium and tmux)
	@scripts/deps.sh test
	$(CARGO) build --locked --profile demo --features demo --bins
	@scripts/screenshots.sh

test-vm: deps ## Run the tests in virtual machines with a simulated memory PMU (KERNELS="bookworm trixie sid"), and test-arm64
	@scripts/vm.sh $(ARGS)
	@$(if $(ARGS),,CARGO="$(CARGO)" scripts/arm64.sh)

test-arm64: deps ## Build for arm64, and test that in an emulated machine
	@CARGO="$(CARGO)" scripts/arm64.sh

test-schedulers: deps ## Run scx_layered with what scxprof prints in a virtual machine (SCX_LAYERED=FILE: this one; SCX_MITOSIS=FILE: scx_mitosis too)
	@scripts/schedulers.sh

proof: deps ## Count the cache misses that configurations save, under the real schedulers in an emulated machine (ARGS=--quick)
	@scripts/proof.sh $(ARGS)

check-upstream: deps ## Compare what scxprof knows of scx_layered with its newest release
	@scripts/upstream.sh

lint: check ## Check the format, lints, API documentation and shell scripts
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features cli,mcp -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps
	if command -v shellcheck >/dev/null; then shellcheck -x scripts/*.sh tests/vm/*.sh tests/vm/guest/*.sh tests/vm/schedulers/*.sh tests/vm/caches/*.sh tests/vm/arm64/*.sh .ci/run; fi

fmt: check ## Format the code
	$(CARGO) fmt --all

bench: check ## Run the benchmarks (benches/README.md)
	$(CARGO) bench --locked $(ARGS)

bench-against: deps ## Tell what got slower since a commit (REV=HEAD~1; as root captures too)
	@CARGO="$(CARGO)" benches/against.sh $(REV) $(ARGS)

bench-big-host: deps ## Print what a host costs by its size, to 512 CPUs and 100,000 threads, by simulation (ARGS="8 32")
	$(CARGO) build --locked --release --features demo --example big_host
	@$(TARGET)/release/examples/big_host $(ARGS)

versus-perf: deps ## Compare scxprof with perf on the same work (ARGS="files --rounds 3"; benches/README.md)
	$(CARGO) build --locked --release --features demo --bins --example versus-perf --example make_profile
	@$(TARGET)/release/examples/versus-perf $(or $(ARGS),--help)

fuzz: ## Run each fuzz target for FUZZ_SECONDS (30)
	@scripts/deps.sh fuzz
	@scripts/fuzz.sh $(ARGS)

miri: ## Run the tests of code without I/O in Miri (ARGS="cluster::linkage" for one module)
	@scripts/miri.sh $(ARGS)

doc: check ## Build the API documentation
	$(CARGO) doc --locked --no-deps

# What `make` has built, as `sudo make install` may find no cargo.
install: $(if $(wildcard $(BINARY)),,build) ## Install binary, systemd units, manual pages and completions under PREFIX (/usr/local)
	install -D -m 755 $(BINARY) $(BIN)/scxprof
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions \
		$(SHARE)/fish/vendor_completions.d $(UNITS)
	SOURCE_DATE_EPOCH=$(MAN_DATE) $(BIN)/scxprof man $(SHARE)/man/man1
	$(BIN)/scxprof completions bash >$(SHARE)/bash-completion/completions/scxprof
	$(BIN)/scxprof completions zsh >$(SHARE)/zsh/site-functions/_scxprof
	$(BIN)/scxprof completions fish >$(SHARE)/fish/vendor_completions.d/scxprof.fish
	for unit in scxprof.service scxprof-watch.service; do \
		sed 's|/usr/local/bin/|$(PREFIX)/bin/|' contrib/$$unit >$(UNITS)/$$unit && chmod 644 $(UNITS)/$$unit || exit; done

uninstall: ## Remove what `make install` with the same PREFIX (and DESTDIR) has installed
	rm -f $(BIN)/scxprof $(SHARE)/man/man1/scxprof.1 $(SHARE)/man/man1/scxprof-*.1 \
		$(SHARE)/bash-completion/completions/scxprof $(SHARE)/zsh/site-functions/_scxprof \
		$(SHARE)/fish/vendor_completions.d/scxprof.fish $(UNITS)/scxprof.service $(UNITS)/scxprof-watch.service

dist: check ## Build archives with a static binary, for minimal hosts and containers (target/dist); for arm64 too
	@CARGO="$(CARGO)" scripts/dist.sh
	@[ "$$(uname -m)" = aarch64 ] || CARGO="$(CARGO)" MACHINE=aarch64 scripts/dist.sh

deb rpm: check ## Build a package with the static binary, systemd units, manual pages and completions (target/dist)
	@CARGO="$(CARGO)" scripts/packages.sh $@

deps: ## Install missing build dependencies
	@scripts/deps.sh

# Says what is missing, and installs nothing.
check:
	@scripts/deps.sh --check

clean: ## Remove build results
	$(CARGO) clean

help: ## List all targets
	@sed -n 's/^\([a-z0-9 -]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
