//! What is run: suites of rows, rows of entries.
//!
//! An entry is one contestant in one variant: the same job with a few things set otherwise. What is
//! set has the names of `scripts/fio-row`.

/// Who has the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Raw,
    Btrfs,
    Xfs,
    Ext4,
    Ours,
}

impl Who {
    pub(crate) const ALL: [Self; 5] = [Self::Raw, Self::Btrfs, Self::Xfs, Self::Ext4, Self::Ours];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Raw => "raw device",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Ours => "Butternut",
        }
    }

    pub(crate) fn is_kernel(self) -> bool {
        matches!(self, Self::Btrfs | Self::Xfs | Self::Ext4)
    }
}

/// What a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    KiloIops,
    Megabytes,
}

pub(crate) type Setting = (&'static str, &'static str);

pub(crate) struct Entry {
    pub(crate) who: Who,
    pub(crate) variant: &'static str,
    pub(crate) set: Vec<Setting>,
    /// Uncached by the kernel: not every fio can ask for it, nor does every file system have it.
    pub(crate) may_refuse: bool,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) job: &'static str,
    pub(crate) unit: Unit,
    pub(crate) set: Vec<Setting>,
    /// Each entry gets the device anew.
    pub(crate) is_fresh: bool,
    /// The files are there before the row begins.
    pub(crate) is_laid_out: bool,
    /// What is held in memory is the point.
    pub(crate) shows_memory: bool,
    pub(crate) entries: Vec<Entry>,
}

pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) rows: Vec<Row>,
}

/// Like for like with the raw device's registered buffers.
const OWNED: Setting = ("BUFFERS", "owned");
const IN_PLACE: Setting = ("IN_PLACE", "1");
/// Files without checksums lie beside those with.
const PLAIN: Setting = ("UNDER", "plain");
const GENERAL: Setting = ("SWITCHES", "simple_read=off");
const EXCLUSIVE: Setting = ("SWITCHES", "nosec=off");
/// A quarter of what is streamed.
const PAGE_CACHE: &str = "page_cache=256M";

fn entry(who: Who, variant: &'static str, set: &[Setting]) -> Entry {
    Entry { who, variant, set: set.to_vec(), may_refuse: false }
}

pub(crate) fn all() -> Vec<Suite> {
    vec![read(), in_place(), overwrite(), stream_write(), stream_read()]
}

/// What `make demo` has time for.
pub(crate) fn brief() -> Vec<Suite> {
    let few = |entry: &Entry| {
        matches!((entry.who, entry.variant), (Who::Raw | Who::Btrfs | Who::Ours, "" | "owned"))
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
            entry(Who::Raw, "", &[]),
            entry(Who::Btrfs, "", &[]),
            entry(Who::Btrfs, "nodatasum", &[IN_PLACE, PLAIN]),
            entry(Who::Xfs, "", &[]),
            entry(Who::Ext4, "", &[]),
            entry(Who::Ours, "", &[OWNED]),
            entry(Who::Ours, "nodatasum", &[OWNED, IN_PLACE, PLAIN]),
        ];
        entries.extend(more.iter().map(|e| entry(e.who, e.variant, &e.set)));
        Row {
            name: name.into(),
            job: "simple-read",
            unit: Unit::KiloIops,
            set: set.to_vec(),
            is_fresh: false,
            is_laid_out: true,
            shows_memory: false,
            entries,
        }
    };
    let general = || entry(Who::Ours, "simple_read=off", &[OWNED, GENERAL]);
    Suite {
        name: "reads",
        rows: vec![
            row("read 4K, depth 1", &[("DEPTH", "1"), ("BATCH", "1")], &[general()]),
            row(
                "read 4K, depth 64",
                &[],
                &[
                    entry(Who::Ours, "borrowed", &[]),
                    general(),
                    entry(
                        Who::Ours,
                        "nodatasum, simple_read=off",
                        &[OWNED, IN_PLACE, PLAIN, GENERAL],
                    ),
                ],
            ),
            row("read 4K, depth 64, 2 threads", &[("JOBS", "2")], &[general()]),
        ],
    }
}

/// Writers of one file, without checksums.
fn in_place() -> Suite {
    let rows = ["1", "2", "4", "8", "16", "32"].map(|writers| {
        // Between the ends, two contestants show the course.
        let is_course = matches!(writers, "2" | "8" | "16");
        let everybody: &[Who] = if is_course { &[Who::Xfs, Who::Ours] } else { &Who::ALL };
        let mut entries: Vec<_> = everybody.iter().map(|who| entry(*who, "", &[])).collect();
        if !is_course {
            entries.push(entry(Who::Ours, "nosec=off", &[EXCLUSIVE]));
        }
        let plural = if writers == "1" { "" } else { "s" };
        Row {
            name: format!("overwrite 4K in place, {writers} writer{plural}"),
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
        job: "stable",
        unit: Unit::KiloIops,
        set: vec![("BS", block)],
        is_fresh: true,
        is_laid_out: true,
        shows_memory: false,
        entries: vec![
            entry(Who::Raw, "", &[]),
            entry(Who::Btrfs, "", &[]),
            entry(Who::Xfs, "", &[]),
            entry(Who::Ours, "owned", &[OWNED]),
            entry(Who::Ours, "bounce", &[]),
            entry(Who::Ours, "trust", &[("SWITCHES", "dio_stable=trust")]),
            entry(Who::Ours, "fallback", &[("SWITCHES", "dio_stable=buffered")]),
        ],
    });
    Suite { name: "overwrites", rows: rows.into() }
}

fn stream_entries(is_write: bool) -> Vec<Entry> {
    let mode = |who, variant: &'static str| {
        entry(who, variant, &[("MODE", variant), ("SWITCHES", PAGE_CACHE)])
    };
    let mut entries = vec![mode(Who::Raw, "direct")];
    for who in [Who::Btrfs, Who::Xfs] {
        entries.extend(
            ["buffered", "uncached", "direct"]
                .map(|variant| Entry { may_refuse: variant == "uncached", ..mode(who, variant) }),
        );
    }
    entries.push(mode(Who::Ext4, "direct"));
    entries.extend(["buffered", "uncached", "direct"].map(|variant| mode(Who::Ours, variant)));
    if is_write {
        entries.extend(flushes().into_iter().skip(1));
    }
    entries
}

/// Uncached writes, by who brings them down.
fn flushes() -> [Entry; 3] {
    let uncached = |variant, switches| {
        entry(Who::Ours, variant, &[("MODE", "uncached"), ("SWITCHES", switches)])
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
    let buffered = |who| entry(who, "buffered", &[("MODE", "buffered"), ("SWITCHES", PAGE_CACHE)]);
    let mut four = vec![
        entry(Who::Raw, "direct", &[]),
        buffered(Who::Btrfs),
        buffered(Who::Xfs),
        buffered(Who::Ours),
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
