//! Compares two manifests, and reports the first differences with path, field and both values.
//!
//! The caller lists the [`Field`]s that a view cannot show; these are not compared.

use crate::manifest::{Entry, Kind, Manifest, PIECE_BYTES, path_order};
use std::cmp::Ordering;
use std::fmt::Write as _;

/// Differences that a report lists; the rest is counted.
const SHOWN_MAX: usize = 20;

/// Longer values are cut, so that an xattr does not fill the screen.
const VALUE_CHARS_MAX: usize = 160;

/// The inode number that the kernel shows for a placeholder directory.
const PLACEHOLDER_INO: u64 = 2;

/// A part of an entry that a view may be unable to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Ino,
    Twin,
    Blocks,
    Order,
    Flags,
    Btime,
    Atime,
    Mtime,
    Ctime,
    Data,
    DirectorySize,
    DirectoryLinks,
    DirectoryTimes,
    /// Names in the `btrfs.` xattr namespace, which other filesystems cannot hold.
    BtrfsXattrs,
}

/// One side of a comparison: its name in the report, and its manifest.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    pub name: &'a str,
    pub manifest: &'a Manifest,
}

/// Compares two manifests. `Ok` holds the number of entries, `Err` the report.
pub fn compare(want: Side<'_>, have: Side<'_>, excused: &[Field]) -> Result<usize, String> {
    let mut report = Report { want: want.name, have: have.name, count: 0, text: String::new() };
    let mut left = want.manifest.entries.iter().peekable();
    let mut right = have.manifest.entries.iter().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => path_order(&a.path, &b.path),
        };
        match order {
            Ordering::Less => {
                left.next().inspect(|entry| report.only(want.name, entry));
            }
            Ordering::Greater => {
                right.next().inspect(|entry| report.only(have.name, entry));
            }
            Ordering::Equal => {
                if let (Some(a), Some(b)) = (left.next(), right.next()) {
                    compare_entries(a, b, excused, &mut report);
                }
            }
        }
    }
    report.finish(want.manifest.entries.len())
}

struct Report<'a> {
    want: &'a str,
    have: &'a str,
    count: usize,
    text: String,
}

impl Report<'_> {
    fn only(&mut self, side: &str, entry: &Entry) {
        self.line(&format!("'{}': only {side} has it ({:?})", entry.path, entry.kind));
    }

    fn differ(&mut self, entry: &Entry, field: &str, want: &str, have: &str) {
        let line = format!(
            "'{}': {field}: {} has {}, {} has {}",
            entry.path,
            self.want,
            cut(want),
            self.have,
            cut(have)
        );
        self.line(&line);
    }

    fn line(&mut self, line: &str) {
        self.count += 1;
        if self.count <= SHOWN_MAX {
            self.text.push_str(line);
            self.text.push('\n');
        }
    }

    fn finish(mut self, compared: usize) -> Result<usize, String> {
        if self.count == 0 {
            return Ok(compared);
        }
        if self.count > SHOWN_MAX {
            let rest = self.count - SHOWN_MAX;
            writeln!(self.text, "... and {rest} more differences").ok();
        }
        Err(self.text)
    }
}

fn compare_entries(want: &Entry, have: &Entry, excused: &[Field], report: &mut Report<'_>) {
    // A snapshot shows a placeholder directory for a nested subvolume. The kernel gives it the time
    // of the mount, and the same inode number as all others.
    let is_placeholder = want.kind == Kind::Directory && want.ino == PLACEHOLDER_INO;
    let made_up = [Field::Mtime, Field::Ctime, Field::Btime, Field::Flags, Field::Twin];
    let hidden = |field| excused.contains(&field) || is_placeholder && made_up.contains(&field);
    let shown = |field| !hidden(field);
    let is_directory = want.kind == Kind::Directory;
    let mut check = |field: &str, a: String, b: String| {
        if a != b {
            report.differ(want, field, &a, &b);
        }
    };
    check("kind", format!("{:?}", want.kind), format!("{:?}", have.kind));
    check("mode", format!("{:04o}", want.mode), format!("{:04o}", have.mode));
    check("uid", want.uid.to_string(), have.uid.to_string());
    check("gid", want.gid.to_string(), have.gid.to_string());
    if !is_directory || shown(Field::DirectorySize) {
        check("size", want.size.to_string(), have.size.to_string());
    }
    if !is_directory || shown(Field::DirectoryLinks) {
        check("nlink", want.nlink.to_string(), have.nlink.to_string());
    }
    check("rdev", format!("{:?}", want.rdev), format!("{:?}", have.rdev));
    compare_times(want, have, &shown, &mut check);
    compare_identities(want, have, &shown, &mut check);
    if shown(Field::Blocks) {
        check("blocks", want.blocks.to_string(), have.blocks.to_string());
    }
    if shown(Field::Flags) {
        check("flags", hex(want.flags), hex(have.flags));
    }
    check("link target", format!("{:?}", want.target), format!("{:?}", have.target));
    if shown(Field::Data) && want.data != have.data {
        check("data ranges", format!("{:?}", want.data), format!("{:?}", have.data));
    }
    compare_xattrs(want, have, shown(Field::BtrfsXattrs), &mut check);
    compare_content(want, have, &mut check);
}

fn compare_times(
    want: &Entry,
    have: &Entry,
    shown: &impl Fn(Field) -> bool,
    check: &mut impl FnMut(&str, String, String),
) {
    if want.kind == Kind::Directory && !shown(Field::DirectoryTimes) {
        return;
    }
    if shown(Field::Atime) {
        check("atime", want.atime.to_string(), have.atime.to_string());
    }
    if shown(Field::Mtime) {
        check("mtime", want.mtime.to_string(), have.mtime.to_string());
    }
    if shown(Field::Ctime) {
        check("ctime", want.ctime.to_string(), have.ctime.to_string());
    }
    if shown(Field::Btime) {
        check("btime", format!("{:?}", want.btime), format!("{:?}", have.btime));
    }
}

fn compare_identities(
    want: &Entry,
    have: &Entry,
    shown: &impl Fn(Field) -> bool,
    check: &mut impl FnMut(&str, String, String),
) {
    if shown(Field::Ino) {
        check("ino", want.ino.to_string(), have.ino.to_string());
    }
    if shown(Field::Twin) {
        check("first name of the same file", want.twin.to_string(), have.twin.to_string());
    }
    if shown(Field::Order) {
        check("place in the listing", want.order.to_string(), have.order.to_string());
    }
}

fn compare_xattrs(
    want: &Entry,
    have: &Entry,
    with_btrfs: bool,
    check: &mut impl FnMut(&str, String, String),
) {
    let names = want
        .xattrs
        .keys()
        .chain(have.xattrs.keys().filter(|name| !want.xattrs.contains_key(*name)));
    for name in names.filter(|name| with_btrfs || !name.0.starts_with(b"btrfs.")) {
        let (a, b) = (want.xattrs.get(name), have.xattrs.get(name));
        if a != b {
            check(&format!("xattr {name}"), format!("{a:?}"), format!("{b:?}"));
        }
    }
}

fn compare_content(want: &Entry, have: &Entry, check: &mut impl FnMut(&str, String, String)) {
    let have_at = |at: u64| {
        let slot = have.pieces.binary_search_by_key(&at, |(start, _)| *start).ok()?;
        have.pieces.get(slot).map(|(_, piece)| *piece)
    };
    let differs = want.pieces.iter().find(|(at, piece)| have_at(*at) != Some(*piece));
    if let Some((offset, piece)) = differs {
        let field = format!("content from {offset} in {PIECE_BYTES} bytes");
        check(&field, format!("{piece:?}"), format!("{:?}", have_at(*offset)));
    }
}

fn hex(flags: Option<u32>) -> String {
    flags.map_or_else(|| "none".to_owned(), |flags| format!("{flags:#x}"))
}

fn cut(value: &str) -> String {
    match value.char_indices().nth(VALUE_CHARS_MAX) {
        Some((at, _)) => format!("{}... ({} bytes)", &value[..at], value.len()),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::walk;

    #[test]
    fn a_changed_byte_a_lost_name_and_a_changed_mode_are_each_reported() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [one.path(), two.path()] {
            std::fs::write(dir.join("same"), vec![7; 300_000]).unwrap();
            std::fs::write(dir.join("rotten"), vec![7; 300_000]).unwrap();
        }
        std::fs::write(one.path().join("lost"), "").unwrap();
        let mut rotten = vec![7; 300_000];
        rotten[200_000] = 8;
        std::fs::write(two.path().join("rotten"), rotten).unwrap();
        let (want, have) = (walk(one.path()).unwrap(), walk(two.path()).unwrap());
        let excused = [Field::Ino, Field::Btime, Field::Ctime, Field::Order, Field::DirectorySize];
        let times = |mut manifest: Manifest| {
            for entry in &mut manifest.entries {
                entry.mtime.secs = 0;
                entry.mtime.nanos = 0;
                entry.atime = entry.mtime;
            }
            manifest
        };
        let (want, have) = (times(want), times(have));
        let want = Side { name: "kernel", manifest: &want };
        let have = Side { name: "butternut", manifest: &have };
        assert_eq!(compare(want, want, &[]), Ok(4));
        let text = compare(want, have, &excused).unwrap_err();
        assert!(text.contains("'lost': only kernel has it"), "{text}");
        assert!(text.contains("'rotten': content from 131072 in 131072 bytes"), "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
