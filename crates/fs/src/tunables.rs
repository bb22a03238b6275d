//! [`Tunables`]: settings of the I/O path that may change at run time. Each turns one mechanism
//! back to what it replaced, so that its benefit can be measured.
//!
//! A tunable has a name, and its values have names ([`TABLE`]). Mount options, `ctl` and the fio
//! engine all parse them with [`Tunables::set_named`].

use butternut_pages::UncachedFlush;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const ON_OFF: &[&str] = &["on", "off"];
const OFF_ON: &[&str] = &["off", "on"];

/// All tunables.
const TABLE: [Row; 7] = [
    Row {
        key: "nosec",
        what: "direct writes share the lock of a file without privileges to strip",
        allowed: ON_OFF,
        read: |tunables| on_off(tunables.nosec),
        set: |tunables, value| tunables.nosec = value == 0,
    },
    Row {
        key: "simple_read",
        what: "direct reads of one block take the short path",
        allowed: ON_OFF,
        read: |tunables| on_off(tunables.simple_read),
        set: |tunables, value| tunables.simple_read = value == 0,
    },
    Row {
        key: "dio_stable",
        what: "how borrowed memory is kept from changing during a direct write",
        allowed: &["bounce", "trust", "buffered"],
        read: |tunables| match tunables.direct_stability {
            DirectStability::Bounce => 0,
            DirectStability::Trust => 1,
            DirectStability::Buffered => 2,
        },
        set: |tunables, value| tunables.direct_stability = DirectStability::of(value),
    },
    Row {
        key: "latency",
        what: "latencies of operations are measured",
        allowed: ON_OFF,
        read: |tunables| on_off(tunables.latency),
        set: |tunables, value| tunables.latency = value == 0,
    },
    Row {
        key: "uncached_flush",
        what: "which thread writes back what uncached writes dirtied",
        allowed: &["device", "inode", "inline"],
        read: |tunables| match tunables.uncached_flush {
            UncachedFlush::Device => 0,
            UncachedFlush::Inode => 1,
            UncachedFlush::Inline => 2,
        },
        set: |tunables, value| tunables.uncached_flush = flush_of(value),
    },
    Row {
        key: "log_tree",
        what: "fsync writes a log instead of committing",
        allowed: ON_OFF,
        read: |tunables| on_off(tunables.log_tree),
        set: |tunables, value| tunables.log_tree = value == 0,
    },
    Row {
        key: "full_fsync_on_release",
        what: "fsync logs all of a file whose pages were evicted (for measurements)",
        allowed: OFF_ON,
        read: |tunables| usize::from(tunables.full_fsync_on_release),
        set: |tunables, value| tunables.full_fsync_on_release = value == 1,
    },
];

/// One row of the table; a value is an index into `allowed`.
struct Row {
    key: &'static str,
    what: &'static str,
    allowed: &'static [&'static str],
    read: fn(&Tunables) -> usize,
    set: fn(&mut Tunables, usize),
}

/// How the bytes of a direct write are kept from changing between checksum and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum DirectStability {
    /// Borrowed memory is copied to a bounce buffer, and its checksums are computed in the same
    /// pass; owned memory cannot change.
    #[default]
    Bounce,
    /// Borrowed memory is assumed not to change. For measurements: a change gives bad checksums.
    Trust,
    /// A write of borrowed memory goes through the page cache.
    Buffered,
}

/// The tunables of a filesystem. Every tunable has a method of its name that sets it.
#[expect(clippy::struct_excessive_bools, reason = "tunables, each on its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tunables {
    /// A direct write inside a file shares the inode lock, if the file is known to have no
    /// privileges to strip. Off: it holds the lock exclusively.
    pub nosec: bool,
    /// A direct read of one block whose extent and checksum are in memory takes the short path.
    pub simple_read: bool,
    pub direct_stability: DirectStability,
    /// Latencies of operations are measured, which costs two reads of the clock for each
    /// ([`Stats::latency`](crate::stats::Stats::latency)).
    pub latency: bool,
    /// Which thread writes back the pages that uncached writes dirtied.
    pub uncached_flush: UncachedFlush,
    /// A sync of a file writes what changed of it to the log tree. Off: it commits the running
    /// transaction.
    pub log_tree: bool,
    /// A sync of a file whose pages were evicted logs all its extents, as kernels do that keep what
    /// changed with the cached pages. For measurements: it is never needed.
    pub full_fsync_on_release: bool,
}

crate::options::setters! { Tunables:
    nosec: bool,
    simple_read: bool,
    direct_stability: DirectStability,
    latency: bool,
    uncached_flush: UncachedFlush,
    log_tree: bool,
    full_fsync_on_release: bool,
}

/// A tunable with its value, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamedTunable {
    pub key: &'static str,
    pub value: &'static str,
    /// All allowed values; the first is the default.
    pub allowed: &'static [&'static str],
    /// What the tunable does, in a few words.
    pub what: &'static str,
}

/// Why a tunable was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTunable {
    #[error("no such tunable: {key:?} (known: {})", known_keys())]
    Unknown { key: String },
    #[error("{key}: have {have:?}, want {}", allowed.join(" or "))]
    Value { key: &'static str, have: String, allowed: &'static [&'static str] },
}

impl DirectStability {
    fn of(number: usize) -> Self {
        match number {
            1 => Self::Trust,
            2 => Self::Buffered,
            _ => Self::Bounce,
        }
    }
}

impl Default for Tunables {
    fn default() -> Self {
        Self {
            nosec: true,
            simple_read: true,
            direct_stability: DirectStability::default(),
            latency: true,
            uncached_flush: UncachedFlush::default(),
            log_tree: true,
            full_fsync_on_release: false,
        }
    }
}

impl Tunables {
    /// Returns all tunables by name.
    pub fn named(&self) -> Vec<NamedTunable> {
        let named = |row: &Row| NamedTunable {
            key: row.key,
            value: row.allowed.get((row.read)(self)).copied().unwrap_or_default(),
            allowed: row.allowed,
            what: row.what,
        };
        TABLE.iter().map(named).collect()
    }

    /// Returns one tunable by name.
    pub fn find_named(&self, key: &str) -> Result<NamedTunable, BadTunable> {
        let found = self.named().into_iter().find(|tunable| tunable.key == key);
        found.ok_or_else(|| BadTunable::Unknown { key: key.to_owned() })
    }

    /// Returns whether there is a tunable of that name.
    pub fn is_named(key: &str) -> bool {
        TABLE.iter().any(|row| row.key == key)
    }

    /// Sets one tunable by name: `nosec`, `off`.
    pub fn set_named(&mut self, key: &str, value: &str) -> Result<(), BadTunable> {
        let row = TABLE.iter().find(|row| row.key == key);
        let row = row.ok_or_else(|| BadTunable::Unknown { key: key.to_owned() })?;
        let number = row.allowed.iter().position(|allowed| *allowed == value);
        let number = number.ok_or_else(|| {
            let (have, allowed) = (value.to_owned(), row.allowed);
            BadTunable::Value { key: row.key, have, allowed }
        })?;
        (row.set)(self, number);
        Ok(())
    }
}

fn flush_of(number: usize) -> UncachedFlush {
    match number {
        1 => UncachedFlush::Inode,
        2 => UncachedFlush::Inline,
        _ => UncachedFlush::Device,
    }
}

fn on_off(is_on: bool) -> usize {
    usize::from(!is_on)
}

fn known_keys() -> String {
    TABLE.map(|row| row.key).join(", ")
}

/// [`Tunables`] that threads share.
#[derive(Debug)]
pub(crate) struct SharedTunables {
    nosec: AtomicBool,
    simple_read: AtomicBool,
    direct_stability: AtomicU8,
    latency: AtomicBool,
    uncached_flush: AtomicU8,
    log_tree: AtomicBool,
    full_fsync_on_release: AtomicBool,
}

impl SharedTunables {
    pub(crate) fn new(tunables: Tunables) -> Self {
        let Tunables {
            nosec,
            simple_read,
            direct_stability,
            latency,
            uncached_flush,
            log_tree,
            full_fsync_on_release,
        } = tunables;
        Self {
            nosec: AtomicBool::new(nosec),
            simple_read: AtomicBool::new(simple_read),
            direct_stability: AtomicU8::new(direct_stability as u8),
            latency: AtomicBool::new(latency),
            uncached_flush: AtomicU8::new(uncached_flush as u8),
            log_tree: AtomicBool::new(log_tree),
            full_fsync_on_release: AtomicBool::new(full_fsync_on_release),
        }
    }

    pub(crate) fn now(&self) -> Tunables {
        let direct_stability = self.direct_stability.load(Ordering::Relaxed);
        Tunables {
            nosec: self.nosec.load(Ordering::Relaxed),
            simple_read: self.simple_read.load(Ordering::Relaxed),
            direct_stability: DirectStability::of(direct_stability.into()),
            latency: self.latency.load(Ordering::Relaxed),
            uncached_flush: flush_of(self.uncached_flush.load(Ordering::Relaxed).into()),
            log_tree: self.log_tree.load(Ordering::Relaxed),
            full_fsync_on_release: self.full_fsync_on_release.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn measures_latency(&self) -> bool {
        self.latency.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, tunables: Tunables) {
        let Tunables {
            nosec,
            simple_read,
            direct_stability,
            latency,
            uncached_flush,
            log_tree,
            full_fsync_on_release,
        } = tunables;
        self.nosec.store(nosec, Ordering::Relaxed);
        self.simple_read.store(simple_read, Ordering::Relaxed);
        self.direct_stability.store(direct_stability as u8, Ordering::Relaxed);
        self.latency.store(latency, Ordering::Relaxed);
        self.uncached_flush.store(uncached_flush as u8, Ordering::Relaxed);
        self.log_tree.store(log_tree, Ordering::Relaxed);
        self.full_fsync_on_release.store(full_fsync_on_release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_of_a_tunable_can_be_set() {
        let defaults = Tunables::default();
        for NamedTunable { key, value, allowed, .. } in defaults.named() {
            assert_eq!(value, allowed[0], "{key}: the default comes first");
            for want in allowed {
                let mut tunables = defaults;
                tunables.set_named(key, want).unwrap();
                assert_eq!(tunables.find_named(key).unwrap().value, *want);
                let changed =
                    tunables.named().iter().zip(defaults.named()).filter(|(a, b)| *a != b).count();
                assert_eq!(changed, usize::from(*want != value), "{key} changes no other tunable");
                assert_eq!(SharedTunables::new(tunables).now(), tunables);
                let shared = SharedTunables::new(defaults);
                shared.set(tunables);
                assert_eq!(shared.now(), tunables);
            }
        }
    }

    #[test]
    fn unknown_tunables_and_values_are_refused() {
        let mut tunables = Tunables::default();
        let said = tunables.set_named("nosuch", "on").unwrap_err().to_string();
        assert_eq!(
            said,
            "no such tunable: \"nosuch\" \
             (known: nosec, simple_read, dio_stable, latency, uncached_flush, log_tree, \
             full_fsync_on_release)"
        );
        let said = tunables.set_named("dio_stable", "maybe").unwrap_err().to_string();
        assert_eq!(said, "dio_stable: have \"maybe\", want bounce or trust or buffered");
        assert_eq!(tunables, Tunables::default());
        assert!(Tunables::is_named("nosec") && !Tunables::is_named("Nosec"));
    }
}
