//! [`Member`]: the headers of one file in an archive.
//!
//! What the fields of a ustar header cannot hold is in a header of pax records before it: long
//! names, large numbers, times with nanoseconds, extended attributes and access lists.

use std::io::{self, Write};

use ::tar::{EntryType, Header};
use butternut::Stat;

use super::records::Records;

/// The size of headers, which data is padded to.
const BLOCK_BYTES: u64 = 512;

pub(super) static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The largest numbers that fields of 7 and of 11 octal digits hold.
const SMALL_MAX: u64 = 0o777_7777;
const LARGE_MAX: u64 = 0o777_7777_7777;

/// The headers of one file.
pub(super) struct Member {
    header: Header,
    records: Records,
}

impl Member {
    /// Starts a member that belongs to root.
    pub(super) fn new(name: &[u8], kind: EntryType) -> Self {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        let mut member = Self { header, records: Records::default() };
        if !fits(&mut member.header.as_old_mut().name, name) {
            member.records.add(b"path", name);
        }
        member
    }

    /// The target of a link.
    pub(super) fn link(mut self, target: &[u8]) -> Self {
        if !fits(&mut self.header.as_old_mut().linkname, target) {
            self.records.add(b"linkpath", target);
        }
        self
    }

    pub(super) fn record(mut self, key: &str, value: &[u8]) -> Self {
        self.records.add(key.as_bytes(), value);
        self
    }

    pub(super) fn device(mut self, (major, minor): (u32, u32)) -> Self {
        for (number, name) in [(major, "SCHILY.devmajor"), (minor, "SCHILY.devminor")] {
            if u64::from(number) > SMALL_MAX {
                self.records.add(name.as_bytes(), number.to_string().as_bytes());
            }
        }
        // Only a header of another format has no such field.
        let small = |number: u32| if u64::from(number) > SMALL_MAX { 0 } else { number };
        self.header.set_device_major(small(major)).unwrap_or_default();
        self.header.set_device_minor(small(minor)).unwrap_or_default();
        self
    }

    /// The mode and the time of modification.
    pub(super) fn attributes(mut self, stat: &Stat, mode: u32) -> Self {
        self.header.set_mode(mode);
        let (secs, nanos) = (stat.mtime.secs, stat.mtime.nanos);
        let whole = u64::try_from(secs).ok().filter(|secs| *secs <= LARGE_MAX);
        self.header.set_mtime(whole.unwrap_or(0));
        if whole.is_none() || nanos > 0 {
            self.records.add(b"mtime", decimal(secs, nanos).as_bytes());
        }
        self
    }

    pub(super) fn owner(mut self, uid: u32, gid: u32) -> Self {
        for (id, name) in [(uid, "uid"), (gid, "gid")] {
            if u64::from(id) > SMALL_MAX {
                self.records.add(name.as_bytes(), id.to_string().as_bytes());
            }
        }
        let small = |id: u32| Some(u64::from(id)).filter(|id| *id <= SMALL_MAX).unwrap_or(0);
        self.header.set_uid(small(uid));
        self.header.set_gid(small(gid));
        self
    }

    /// The bytes of data that follow the headers.
    pub(super) fn size(mut self, bytes: u64) -> Self {
        if bytes > LARGE_MAX {
            self.records.add(b"size", bytes.to_string().as_bytes());
        }
        self.header.set_size(bytes.min(LARGE_MAX));
        self
    }

    pub(super) fn xattr(&mut self, name: &[u8], value: &[u8]) {
        self.records.add_xattr(name, value);
    }

    pub(super) fn write(mut self, to: &mut impl Write) -> io::Result<()> {
        let records = self.records.bytes();
        if !records.is_empty() {
            let mut header = Header::new_ustar();
            header.set_entry_type(EntryType::XHeader);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(records.len() as u64);
            let named = [b"PaxHeaders/", &self.header.as_old().name[..]].concat();
            fits(&mut header.as_old_mut().name, &named);
            header.set_cksum();
            to.write_all(header.as_bytes())?;
            to.write_all(records)?;
            pad(to, records.len() as u64)?;
        }
        self.header.set_cksum();
        to.write_all(self.header.as_bytes())
    }
}

/// Writes zeros behind `bytes` bytes, up to the next block.
pub(super) fn pad(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    let behind = bytes.next_multiple_of(BLOCK_BYTES) - bytes;
    to.write_all(&ZEROS[..usize::try_from(behind).unwrap_or(0)])
}

/// Fills a field of a header with a name, or with its beginning. Returns whether it is all of it.
fn fits(field: &mut [u8; 100], name: &[u8]) -> bool {
    let taken = name.len().min(field.len());
    field[..taken].copy_from_slice(&name[..taken]);
    taken == name.len()
}

/// A time in seconds, with as many digits behind the point as it has nanoseconds.
fn decimal(secs: i64, nanos: u32) -> String {
    if secs < 0 && nanos > 0 {
        // -1.75 s is 250 ms after -2 s.
        return format!("-{}.{:09}", (secs + 1).unsigned_abs(), 1_000_000_000 - nanos);
    }
    format!("{secs}.{nanos:09}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_backwards() {
        assert_eq!(decimal(-2, 250_000_000), "-1.750000000");
        assert_eq!(decimal(-1, 1), "-0.999999999");
        assert_eq!(decimal(-1, 0), "-1.000000000");
        assert_eq!(decimal(0, 5), "0.000000005");
    }
}
