# latpath. `make` builds; `make demo` and `make test`, as root, first install missing requirements (Debian, apt) and
# report that.

PREFIX ?= /usr/local
LATPATH := $(or $(CARGO_TARGET_DIR),target)/release/latpath
# Options of the demo, as in: make demo ARGS="--no-guest --duration 10s"
ARGS ?=
# Root installs missing requirements; for other users they are only listed.
DEPS := scripts/deps $(if $(filter 0,$(shell id -u)),install,check)

.PHONY: build deps demo check test lab fuzz bench lint licences install uninstall clean help

build: ## Build target/release/latpath (no root needed)
	@$(DEPS) build
	scripts/build

deps: ## Install what is needed to build, run and test (root, Debian)
	@scripts/deps install test

demo: ## Build, then follow 4,000 frames/s into a real guest (root); ARGS="--no-guest --duration 10s"
	@$(DEPS) run
	scripts/build
	$(LATPATH) demo $(ARGS)

check: ## Run the tests that need no root, in two minutes after the build, and check the formatting
	@$(DEPS) build
	. scripts/rust && cargo fmt --all --check
	LATPATH_TIER=check scripts/test $(ARGS)

test: ## Run all tests but the lab's (root; what cannot run is skipped and counted); ARGS="-p latpath-journey"
	@$(DEPS) $(if $(filter 0,$(shell id -u)),test,build)
	LATPATH_TIER=test scripts/test $(ARGS)

lab: ## Test in guests, on whole hypervisors of all kernels, and with faults (root, hours); LATPATH_LAB=6.12,6.1-rt ARGS=NAME
	@$(DEPS) test
	LATPATH_TIER=lab LATPATH_LAB=$${LATPATH_LAB:-all} scripts/test --test '*' -- $(ARGS)

fuzz: ## Run each fuzz target for FUZZ_SECONDS (60), with cargo-fuzz and a nightly compiler; ARGS=TARGET
	@$(DEPS) build
	scripts/fuzz $(ARGS)

bench: ## Measure what latpath itself costs (root)
	@$(DEPS) bench
	scripts/build
	scripts/bench

lint: ## Formatting, clippy (warnings are errors), licences of dependencies
	@. scripts/rust && cargo fmt --all --check && cargo clippy --release --workspace --all-targets -- -D warnings
	scripts/licences check

licences: ## Write THIRD-PARTY.txt, after dependencies changed
	scripts/licences write

install: ## Install to PREFIX (/usr/local): program, manual pages, documentation, licences, bash completion, debug information; build first
	@test -x $(LATPATH) || { echo "$(LATPATH): not built yet; run make first" >&2; exit 1; }
	@scripts/split-debug $(LATPATH)
	install -d $(DESTDIR)$(PREFIX)/bin/.debug
	install -m 755 $(LATPATH) $(DESTDIR)$(PREFIX)/bin/latpath
	install -m 644 $(LATPATH).debug $(DESTDIR)$(PREFIX)/bin/.debug/latpath.debug
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(LATPATH) man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/doc/latpath
	install -m 644 README.md CHANGELOG.md LICENSE NOTICE THIRD-PARTY.txt docs/*.md docs/*.png $(DESTDIR)$(PREFIX)/share/doc/latpath
	install -d $(DESTDIR)$(PREFIX)/share/doc/latpath/licences
	install -m 644 licences/*.txt $(DESTDIR)$(PREFIX)/share/doc/latpath/licences
	$(LATPATH) completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/latpath

uninstall: ## Remove what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/latpath $(DESTDIR)$(PREFIX)/bin/.debug/latpath.debug
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/latpath*.1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions/latpath
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/latpath
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(PREFIX)/bin/.debug

clean: ## Remove everything that was built
	@. scripts/rust && cargo clean

help: ## Show this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || sed -n 's/^\([a-z]*\):.*## /\1: /p' $(MAKEFILE_LIST)
