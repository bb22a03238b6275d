//! Switches: each turns one mechanism of the I/O path back to what it replaced, so that its worth
//! can be measured. They may change while the filesystem is in use.
//!
//! Each has a name and values with names ([`TABLE`]): what is typed anywhere is read here, by
//! [`Switches::set_named`].

use butternut_pages::UncachedFlush;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const ON_OFF: &[&str] = &["on", "off"];

/// Every switch.
const TABLE: [Row; 5] = [
    Row {
        key: "nosec",
        what: "direct writes share a file that has no privileges to strip",
        allowed: ON_OFF,
        read: |switches| on_off(switches.nosec),
        set: |switches, value| switches.nosec = value == 0,
    },
    Row {
        key: "simple_read",
        what: "direct reads of one block take the short way",
        allowed: ON_OFF,
        read: |switches| on_off(switches.simple_read),
        set: |switches, value| switches.simple_read = value == 0,
    },
    Row {
        key: "dio_stable",
        what: "what keeps borrowed memory from changing under a direct write",
        allowed: &["bounce", "trust", "buffered"],
        read: |switches| match switches.direct_stability {
            DirectStability::Bounce => 0,
            DirectStability::Trust => 1,
            DirectStability::Buffered => 2,
        },
        set: |switches, value| switches.direct_stability = DirectStability::of(value),
    },
    Row {
        key: "latency",
        what: "how long operations take is measured",
        allowed: ON_OFF,
        read: |switches| on_off(switches.latency),
        set: |switches, value| switches.latency = value == 0,
    },
    Row {
        key: "uncached_flush",
        what: "who brings down what uncached writes made dirty",
        allowed: &["device", "inode", "inline"],
        read: |switches| match switches.uncached_flush {
            UncachedFlush::Device => 0,
            UncachedFlush::Inode => 1,
            UncachedFlush::Inline => 2,
        },
        set: |switches, value| switches.uncached_flush = flush_of(value),
    },
];

/// One line of the table; values are numbered as in `allowed`.
struct Row {
    key: &'static str,
    what: &'static str,
    allowed: &'static [&'static str],
    read: fn(&Switches) -> usize,
    set: fn(&mut Switches, usize),
}

/// What keeps the bytes of a direct write from changing between checksum and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectStability {
    /// Borrowed memory is copied once, and summed in the same pass; owned memory is stable.
    #[default]
    Bounce,
    /// Borrowed memory is believed to be stable. For measurements: it may give bad checksums.
    Trust,
    /// Borrowed memory goes through the page cache.
    Buffered,
}

/// The switches of a filesystem, as they are now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// A direct write inside a file shares the file, once it is known that there are no privileges
    /// to strip; off: it has the file alone.
    pub nosec: bool,
    /// A direct read of one block whose place and checksum are in memory takes the short way.
    pub simple_read: bool,
    pub direct_stability: DirectStability,
    /// How long operations take is measured ([`Stats::latency`](crate::Stats::latency)): two looks
    /// at the clock for each.
    pub latency: bool,
    /// Who brings down what uncached writes made dirty.
    pub uncached_flush: UncachedFlush,
}

/// A switch as it is typed and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedSwitch {
    pub key: &'static str,
    pub value: &'static str,
    /// All values that it may have; the first is the default.
    pub allowed: &'static [&'static str],
    /// In a few words: what it is for, or what its first value says.
    pub what: &'static str,
}

/// Why a switch was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSwitch {
    #[error("no such switch: {key:?} (known: {})", known_keys())]
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

impl Default for Switches {
    fn default() -> Self {
        Self {
            nosec: true,
            simple_read: true,
            direct_stability: DirectStability::default(),
            latency: true,
            uncached_flush: UncachedFlush::default(),
        }
    }
}

impl Switches {
    /// Every switch by its name.
    pub fn named(&self) -> Vec<NamedSwitch> {
        let named = |row: &Row| NamedSwitch {
            key: row.key,
            value: row.allowed.get((row.read)(self)).copied().unwrap_or_default(),
            allowed: row.allowed,
            what: row.what,
        };
        TABLE.iter().map(named).collect()
    }

    /// One switch by its name.
    pub fn find_named(&self, key: &str) -> Result<NamedSwitch, BadSwitch> {
        let found = self.named().into_iter().find(|switch| switch.key == key);
        found.ok_or_else(|| BadSwitch::Unknown { key: key.to_owned() })
    }

    /// Whether there is a switch of that name.
    pub fn is_named(key: &str) -> bool {
        TABLE.iter().any(|row| row.key == key)
    }

    /// Sets one switch, as typed: `nosec`, `off`.
    pub fn set_named(&mut self, key: &str, value: &str) -> Result<(), BadSwitch> {
        let row = TABLE.iter().find(|row| row.key == key);
        let row = row.ok_or_else(|| BadSwitch::Unknown { key: key.to_owned() })?;
        let number = row.allowed.iter().position(|allowed| *allowed == value);
        let number = number.ok_or_else(|| {
            let (have, allowed) = (value.to_owned(), row.allowed);
            BadSwitch::Value { key: row.key, have, allowed }
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

/// The same, shared.
#[derive(Debug)]
pub(crate) struct SwitchBoard {
    nosec: AtomicBool,
    simple_read: AtomicBool,
    direct_stability: AtomicU8,
    latency: AtomicBool,
    uncached_flush: AtomicU8,
}

impl SwitchBoard {
    pub(crate) fn new(switches: Switches) -> Self {
        let Switches { nosec, simple_read, direct_stability, latency, uncached_flush } = switches;
        Self {
            nosec: AtomicBool::new(nosec),
            simple_read: AtomicBool::new(simple_read),
            direct_stability: AtomicU8::new(direct_stability as u8),
            latency: AtomicBool::new(latency),
            uncached_flush: AtomicU8::new(uncached_flush as u8),
        }
    }

    pub(crate) fn now(&self) -> Switches {
        let direct_stability = self.direct_stability.load(Ordering::Relaxed);
        Switches {
            nosec: self.nosec.load(Ordering::Relaxed),
            simple_read: self.simple_read.load(Ordering::Relaxed),
            direct_stability: DirectStability::of(direct_stability.into()),
            latency: self.latency.load(Ordering::Relaxed),
            uncached_flush: flush_of(self.uncached_flush.load(Ordering::Relaxed).into()),
        }
    }

    pub(crate) fn measures_latency(&self) -> bool {
        self.latency.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, switches: Switches) {
        let Switches { nosec, simple_read, direct_stability, latency, uncached_flush } = switches;
        self.nosec.store(nosec, Ordering::Relaxed);
        self.simple_read.store(simple_read, Ordering::Relaxed);
        self.direct_stability.store(direct_stability as u8, Ordering::Relaxed);
        self.latency.store(latency, Ordering::Relaxed);
        self.uncached_flush.store(uncached_flush as u8, Ordering::Relaxed);
    }
}

impl crate::Filesystem {
    pub fn switches(&self) -> Switches {
        self.shared.switches.now()
    }

    /// Sets all switches, from the next request on.
    pub fn set_switches(&self, switches: Switches) {
        self.shared.switches.set(switches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_takes_each_of_its_values_and_shows_it() {
        let defaults = Switches::default();
        for NamedSwitch { key, value, allowed, .. } in defaults.named() {
            assert_eq!(value, allowed[0], "{key}: the default comes first");
            for want in allowed {
                let mut switches = defaults;
                switches.set_named(key, want).unwrap();
                assert_eq!(switches.find_named(key).unwrap().value, *want);
                let changed =
                    switches.named().iter().zip(defaults.named()).filter(|(a, b)| *a != b).count();
                assert_eq!(changed, usize::from(*want != value), "{key} moves no other switch");
                assert_eq!(SwitchBoard::new(switches).now(), switches);
                let board = SwitchBoard::new(defaults);
                board.set(switches);
                assert_eq!(board.now(), switches);
            }
        }
    }

    #[test]
    fn what_is_no_switch_or_no_value_is_refused_by_name() {
        let mut switches = Switches::default();
        let said = switches.set_named("nosuch", "on").unwrap_err().to_string();
        assert_eq!(
            said,
            "no such switch: \"nosuch\" \
             (known: nosec, simple_read, dio_stable, latency, uncached_flush)"
        );
        let said = switches.set_named("dio_stable", "maybe").unwrap_err().to_string();
        assert_eq!(said, "dio_stable: have \"maybe\", want bounce or trust or buffered");
        assert_eq!(switches, Switches::default());
        assert!(Switches::is_named("nosec") && !Switches::is_named("Nosec"));
    }
}
