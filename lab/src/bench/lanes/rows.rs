//! The suites, their rows, and the entries of each row.
//!
//! An entry is one contestant in one variant: the job of the row with some settings changed. The
//! settings are environment variables of the row's script.

/// What is measured: the raw device, or a file system on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    Raw,
    Btrfs,
    Xfs,
    Ext4,
    /// Through the library, by the fio engine.
    Butternut,
    /// Through the FUSE mount.
    Mount,
}

impl Contestant {
    pub(crate) const ALL: [Self; 6] =
        [Self::Raw, Self::Btrfs, Self::Xfs, Self::Ext4, Self::Butternut, Self::Mount];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Raw => "raw device",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Butternut => "Butternut",
            Self::Mount => "Butternut mount",
        }
    }

    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Self::Btrfs | Self::Xfs | Self::Ext4)
    }
}

/// Unit of the rates of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    KiloIops,
    Megabytes,
    Transactions,
}

/// The script that runs a row's job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// `scripts/fio-row`.
    Fio,
    /// `scripts/database-row`. It runs on mounts only.
    Database,
}

pub(crate) type Setting = (&'static str, &'static str);

pub(crate) struct Entry {
    pub(crate) contestant: Contestant,
    pub(crate) variant: &'static str,
    pub(crate) set: Vec<Setting>,
    /// The entry uses the kernel's uncached I/O, which older fio versions and some file systems
    /// lack.
    pub(crate) may_refuse: bool,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) script: Script,
    pub(crate) job: &'static str,
    pub(crate) unit: Unit,
    pub(crate) set: Vec<Setting>,
    /// Each entry gets a newly formatted device.
    pub(crate) is_fresh: bool,
    /// The files are written before the row is timed.
    pub(crate) is_laid_out: bool,
    /// The table shows how much file data the page cache held.
    pub(crate) shows_memory: bool,
    pub(crate) entries: Vec<Entry>,
}

pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// Owned buffers are registered, as the raw device's are.
const OWNED: Setting = ("BUFFERS", "owned");
const IN_PLACE: Setting = ("IN_PLACE", "1");
/// Puts files without checksums into a directory of their own.
const PLAIN: Setting = ("UNDER", "plain");
const GENERAL: Setting = ("MOUNT_OPTIONS", "simple_read=off");
const EXCLUSIVE: Setting = ("MOUNT_OPTIONS", "nosec=off");
const COMMITTED: Setting = ("MOUNT_OPTIONS", "log_tree=off");
/// A quarter of the streamed file.
const PAGE_CACHE: &str = "page_cache=256M";

fn entry(contestant: Contestant, variant: &'static str, set: &[Setting]) -> Entry {
    Entry { contestant, variant, set: set.to_vec(), may_refuse: false }
}

pub(crate) fn all() -> Vec<Suite> {
    vec![read(), in_place(), overwrite(), stream_write(), stream_read()]
}

/// Returns the suite of fsyncs. Each writer has a file of its own.
pub(crate) fn fsync() -> Suite {
    let mut rows: Vec<Row> = [
        ("write 64K and fsync, 1 job", "1"),
        ("write 64K and fsync, 2 jobs", "2"),
        ("write 64K and fsync, 4 jobs", "4"),
        ("write 64K and fsync, 8 jobs", "8"),
        ("write 64K and fsync, 16 jobs", "16"),
        ("write 64K and fsync, 32 jobs", "32"),
        ("write 64K and fsync, 64 jobs", "64"),
    ]
    .into_iter()
    .map(|(name, jobs)| fsync_row(name, "fsync", &[("JOBS", jobs), ("BS", "64k")]))
    .collect();
    for row in &mut rows {
        if row.name.ends_with(" 32 jobs") {
            row.entries.extend(limited_caches());
        }
    }
    let random = [("RW", "randwrite"), ("EVERY", "16")];
    rows.push(fsync_row("write 4K at random, fsync after 16", "fsync", &random));
    rows.push(fsync_row("overwrite 4K, O_DSYNC", "dsync", &[]));
    Suite { name: "fsyncs", rows }
}

fn fsync_row(name: &str, job: &'static str, set: &[Setting]) -> Row {
    let mut set = set.to_vec();
    set.push(("SIZE", "32M"));
    Row {
        name: name.into(),
        script: Script::Fio,
        job,
        unit: Unit::KiloIops,
        set,
        is_fresh: true,
        is_laid_out: job == "dsync",
        shows_memory: false,
        entries: vec![
            entry(Contestant::Btrfs, "", &[]),
            entry(Contestant::Xfs, "", &[]),
            entry(Contestant::Ext4, "", &[]),
            entry(Contestant::Butternut, "", &[]),
            entry(Contestant::Butternut, "log_tree=off", &[COMMITTED]),
            entry(Contestant::Mount, "", &[]),
        ],
    }
}

/// Returns the suite of databases, whose transactions are single rows.
pub(crate) fn databases() -> Suite {
    let rows = [
        ("SQLite, WAL", "sqlite-wal", "1"),
        ("SQLite, rollback journal", "sqlite-delete", "1"),
        ("PostgreSQL, 1 client", "pgbench", "1"),
        ("PostgreSQL, 8 clients", "pgbench", "8"),
    ];
    let rows = rows.map(|(name, job, clients)| Row {
        name: name.into(),
        script: Script::Database,
        job,
        unit: Unit::Transactions,
        set: vec![("CLIENTS", clients)],
        is_fresh: true,
        is_laid_out: true,
        shows_memory: false,
        entries: vec![
            entry(Contestant::Btrfs, "", &[]),
            entry(Contestant::Xfs, "", &[]),
            entry(Contestant::Ext4, "", &[]),
            entry(Contestant::Mount, "", &[]),
            entry(Contestant::Mount, "log_tree=off", &[COMMITTED]),
        ],
    });
    Suite { name: "databases", rows: rows.into() }
}

/// 32 writers with a page cache of a quarter of their data.
fn limited_caches() -> [Entry; 2] {
    let limited = |variant, mount_options| {
        entry(Contestant::Butternut, variant, &[("MOUNT_OPTIONS", mount_options)])
    };
    [
        limited("page cache of 1/4", "page_cache=256M"),
        limited("and full fsync", "page_cache=256M,full_fsync_on_release=on"),
    ]
}

/// Returns the two short suites of `make demo`.
pub(crate) fn brief() -> Vec<Suite> {
    let few = |entry: &Entry| {
        matches!(
            (entry.contestant, entry.variant),
            (Contestant::Raw | Contestant::Btrfs | Contestant::Butternut, "" | "owned")
        )
    };
    let mut suites = vec![read(), overwrite()];
    for (suite, keep) in suites.iter_mut().zip(["read 4K, depth 64", "overwrite 4K"]) {
        suite.rows.retain(|row| row.name == keep);
        for row in &mut suite.rows {
            row.entries.retain(few);
        }
    }
    suites
}

fn read() -> Suite {
    let row = |name: &str, set: &[Setting], more: &[Entry]| {
        let mut entries = vec![
            entry(Contestant::Raw, "", &[]),
            entry(Contestant::Btrfs, "", &[]),
            entry(Contestant::Btrfs, "nodatasum", &[IN_PLACE, PLAIN]),
            entry(Contestant::Xfs, "", &[]),
            entry(Contestant::Ext4, "", &[]),
            entry(Contestant::Butternut, "", &[OWNED]),
            entry(Contestant::Butternut, "nodatasum", &[OWNED, IN_PLACE, PLAIN]),
        ];
        entries.extend(more.iter().map(|e| entry(e.contestant, e.variant, &e.set)));
        Row {
            name: name.into(),
            script: Script::Fio,
            job: "simple-read",
            unit: Unit::KiloIops,
            set: set.to_vec(),
            is_fresh: false,
            is_laid_out: true,
            shows_memory: false,
            entries,
        }
    };
    let general = || entry(Contestant::Butternut, "simple_read=off", &[OWNED, GENERAL]);
    Suite {
        name: "reads",
        rows: vec![
            row("read 4K, depth 1", &[("DEPTH", "1"), ("BATCH", "1")], &[general()]),
            row(
                "read 4K, depth 64",
                &[],
                &[
                    entry(Contestant::Butternut, "borrowed", &[]),
                    general(),
                    entry(
                        Contestant::Butternut,
                        "nodatasum, simple_read=off",
                        &[OWNED, IN_PLACE, PLAIN, GENERAL],
                    ),
                ],
            ),
            row("read 4K, depth 64, 2 threads", &[("JOBS", "2")], &[general()]),
        ],
    }
}

/// Several writers of one file without checksums.
fn in_place() -> Suite {
    let rows = ["1", "2", "4", "8", "16", "32"].map(|writers| {
        // For the counts in between, two contestants suffice.
        let is_between = matches!(writers, "2" | "8" | "16");
        let contestants: &[Contestant] = if is_between {
            &[Contestant::Xfs, Contestant::Butternut]
        } else {
            &[
                Contestant::Raw,
                Contestant::Btrfs,
                Contestant::Xfs,
                Contestant::Ext4,
                Contestant::Butternut,
            ]
        };
        let mut entries: Vec<_> =
            contestants.iter().map(|contestant| entry(*contestant, "", &[])).collect();
        if !is_between {
            entries.push(entry(Contestant::Butternut, "nosec=off", &[EXCLUSIVE]));
        }
        let plural = if writers == "1" { "" } else { "s" };
        Row {
            name: format!("overwrite 4K in place, {writers} writer{plural}"),
            script: Script::Fio,
            job: "nosec",
            unit: Unit::KiloIops,
            set: vec![("WRITERS", writers)],
            is_fresh: false,
            is_laid_out: true,
            shows_memory: false,
            entries,
        }
    });
    Suite { name: "writes in place", rows: rows.into() }
}

/// Copy-on-write with checksums.
fn overwrite() -> Suite {
    let rows = [("overwrite 4K", "4k"), ("overwrite 64K", "64k")].map(|(name, block)| Row {
        name: name.into(),
        script: Script::Fio,
        job: "stable",
        unit: Unit::KiloIops,
        set: vec![("BS", block)],
        is_fresh: true,
        is_laid_out: true,
        shows_memory: false,
        entries: vec![
            entry(Contestant::Raw, "", &[]),
            entry(Contestant::Btrfs, "", &[]),
            entry(Contestant::Xfs, "", &[]),
            entry(Contestant::Butternut, "owned", &[OWNED]),
            entry(Contestant::Butternut, "bounce", &[]),
            entry(Contestant::Butternut, "trust", &[("MOUNT_OPTIONS", "dio_stable=trust")]),
            entry(Contestant::Butternut, "fallback", &[("MOUNT_OPTIONS", "dio_stable=buffered")]),
        ],
    });
    Suite { name: "overwrites", rows: rows.into() }
}

fn stream_entries(is_write: bool) -> Vec<Entry> {
    let mode = |contestant, variant: &'static str| {
        entry(contestant, variant, &[("MODE", variant), ("MOUNT_OPTIONS", PAGE_CACHE)])
    };
    let mut entries = vec![mode(Contestant::Raw, "direct")];
    for contestant in [Contestant::Btrfs, Contestant::Xfs] {
        entries.extend(["buffered", "uncached", "direct"].map(|variant| Entry {
            may_refuse: variant == "uncached",
            ..mode(contestant, variant)
        }));
    }
    entries.push(mode(Contestant::Ext4, "direct"));
    entries.extend(
        ["buffered", "uncached", "direct"].map(|variant| mode(Contestant::Butternut, variant)),
    );
    if is_write {
        entries.extend(flushes().into_iter().skip(1));
    }
    entries
}

/// Uncached writes, with each setting of which thread writes them back.
fn flushes() -> [Entry; 3] {
    let uncached = |variant, mount_options| {
        entry(
            Contestant::Butternut,
            variant,
            &[("MODE", "uncached"), ("MOUNT_OPTIONS", mount_options)],
        )
    };
    [
        uncached("uncached_flush=device", "page_cache=256M,uncached_flush=device"),
        uncached("uncached_flush=inode", "page_cache=256M,uncached_flush=inode"),
        uncached("uncached_flush=inline", "page_cache=256M,uncached_flush=inline"),
    ]
}

fn stream(name: &str, job: &'static str, entries: Vec<Entry>) -> Row {
    Row {
        name: name.into(),
        script: Script::Fio,
        job,
        unit: Unit::Megabytes,
        set: Vec::new(),
        is_fresh: true,
        is_laid_out: false,
        shows_memory: true,
        entries,
    }
}

fn stream_write() -> Suite {
    let buffered = |contestant| {
        entry(contestant, "buffered", &[("MODE", "buffered"), ("MOUNT_OPTIONS", PAGE_CACHE)])
    };
    let mut four = vec![
        entry(Contestant::Raw, "direct", &[]),
        buffered(Contestant::Btrfs),
        buffered(Contestant::Xfs),
        buffered(Contestant::Butternut),
    ];
    four.extend(flushes());
    let mut four = stream("write 1M, 4 writers of own files", "neighbours-a", four);
    four.set.push(("SIZE", "256M"));
    let rows = vec![stream("write 1M", "uncached-seq-write", stream_entries(true)), four];
    Suite { name: "sequential writes", rows }
}

fn stream_read() -> Suite {
    let row = stream("read 1M", "uncached-seq-read", stream_entries(false));
    let row = Row { is_fresh: false, is_laid_out: true, ..row };
    Suite { name: "sequential reads", rows: vec![row] }
}
