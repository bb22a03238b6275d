# The few commands that matter. Each installs or says what it needs (scripts/setup).

export PATH := $(CURDIR)/target/tools/bin:$(PATH)
export PREFIX DESTDIR HELPERDIR ZSHDIR BINARIES

.PHONY: demo build install uninstall deb test test-long error-branches lint bench bench-lanes \
    bench-fsync bench-snapshots lab lab-nightly fio fuzz clean-mounts

# Makes volumes, mounts them with Butternut, compares, shows what is in them and how fast.
demo:
	@scripts/setup demo
	@scripts/demo

# The programs, optimised, in target/release.
build:
	@scripts/build-program

# Programs, helpers of mount(8), man pages and completions. Variables: PREFIX, DESTDIR, and those that
# scripts/install lists: make install PREFIX=/usr DESTDIR=/tmp/staged.
install:
	@scripts/install

uninstall:
	@scripts/install --remove

# The Debian package, in target/debian.
deb:
	@scripts/setup package
	@scripts/deb

# Everything: style, unit tests, the judges over the kernel-made images, examples in the docs.
test: lint
	@scripts/test

# The same, with the longer runs of seeded tests, a second kernel as the judge of fs-verity
# (scripts/verity), and xfstests where BUTTERNUT_FSTESTS names a checkout (docs/fstests.md).
test-long: lint
	@scripts/setup long
	@BUTTERNUT_LONG=1 BUTTERNUT_FUZZ_ROUNDS=5000 scripts/test
	@scripts/fstests --at-hand

# Which error branches of the write path the tests take, counted by a build with coverage counters:
# writes docs/error-branches.md in about an hour.
error-branches:
	@scripts/setup
	@scripts/error-branches $(ARGS)

lint:
	@scripts/setup
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings

bench:
	@scripts/setup
	@scripts/bench

# The I/O lanes beside the raw device and the kernel's btrfs, xfs and ext4, through fio; about twelve
# minutes. Options: ARGS="--quick --only read" (scripts/bench-lanes --help).
bench-lanes:
	@scripts/setup
	@scripts/bench-lanes $(ARGS)

# Writes followed by an fsync, by 1 to 64 jobs, and transactions of SQLite and PostgreSQL, beside the
# kernel's btrfs, xfs and ext4.
bench-fsync:
	@scripts/setup
	@scripts/bench-lanes --suite fsync $(ARGS)

# Snapshots, deletions and streams, beside the kernel's btrfs and btrfs-progs.
bench-snapshots:
	@scripts/setup
	@scripts/bench snapshots $(ARGS)

# The benchmark of scenarios and targets (docs/lab/README.md): ARGS="run --suite published --quick".
lab:
	@scripts/setup
	@scripts/lab $(or $(ARGS),run --suite smoke --quick)

# A run of a suite, judged against those before it, the budgets, and a report (docs/lab/README.md):
# ARGS="--suite published --device /dev/nvme1n1 --time 6h".
lab-nightly:
	@scripts/setup
	@scripts/lab-nightly $(ARGS)

# The fio engine, for the fio that is installed; skipped where fio's source cannot be had.
fio:
	@scripts/fio

fuzz:
	@scripts/fuzz

clean-mounts:
	@scripts/clean-mounts
