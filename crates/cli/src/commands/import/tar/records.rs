//! [`Records`]: what the pax records of a member say, `LENGTH KEY=VALUE` and a newline each.
//!
//! 1. A record whose length is wrong is refused. Unknown keys are ignored, as POSIX wants it.
//! 2. An empty value takes back an earlier one.
//! 3. In the name of an attribute, `%3D` is `=` and `%25` is `%`: GNU tar encodes these two, and
//!    nothing else.
//! 4. Attributes that are not copied are not kept.

use std::collections::BTreeMap;

use butternut::Time;

const XATTR: &[u8] = b"SCHILY.xattr.";
/// Namespaces of attributes that are copied, as from a directory.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"btrfs."];
/// What an attribute takes in memory, besides its name and value.
const XATTR_BYTES: usize = 64;

/// What the records of a member say. Keys that are not there are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Records {
    /// Extended attributes and access lists are ignored, whatever they have.
    pub(super) without_xattrs: bool,
    pub(super) path: Option<Vec<u8>>,
    pub(super) link_path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<Time>,
    pub(super) atime: Option<Time>,
    pub(super) device_major: Option<u32>,
    pub(super) device_minor: Option<u32>,
    pub(super) acl_access: Option<Vec<u8>>,
    pub(super) acl_default: Option<Vec<u8>>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) sparse: SparseRecords,
}

/// The keys of GNU tar's formats of sparse files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SparseRecords {
    pub(super) name: Option<Vec<u8>>,
    pub(super) version: (Option<u64>, Option<u64>),
    /// The size of the file with its holes.
    pub(super) size: Option<u64>,
    /// Offsets and lengths in turn: of version 0.0, and of version 0.1 as one value.
    pub(super) numbers: Vec<u64>,
}

impl Records {
    /// Adds records.
    ///
    /// # Errors
    /// The part that is not a record, or has a value that is not one of its key.
    pub(super) fn add(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let shown = || {
                let end = bytes.len().min(40);
                format!("{:?}", String::from_utf8_lossy(&bytes[..end]))
            };
            let (key, value, rest) = split(bytes).ok_or_else(shown)?;
            self.set(key, value).ok_or_else(shown)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Returns about how many bytes the records take in memory.
    pub(super) fn kept_bytes(&self) -> usize {
        let texts = [&self.path, &self.link_path, &self.acl_access, &self.acl_default];
        let texts = texts.into_iter().chain([&self.sparse.name]).flatten().map(Vec::len);
        let xattrs = self.xattrs.iter().map(|(name, value)| name.len() + value.len() + XATTR_BYTES);
        texts.chain(xattrs).sum::<usize>() + size_of::<u64>() * self.sparse.numbers.len()
    }

    /// Returns whether an attribute is copied (law 3).
    fn is_wanted(&self, name: &[u8]) -> bool {
        !self.without_xattrs && NAMESPACES.iter().any(|space| name.starts_with(space))
    }

    /// Returns `None` if the value is not one of the key.
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let is_removed = value.is_empty();
        let bytes = || (!is_removed).then(|| value.to_vec());
        match key {
            b"path" => self.path = bytes(),
            b"linkpath" => self.link_path = bytes(),
            b"size" => self.size = parsed(value, number)?,
            b"uid" => self.uid = parsed(value, small_number)?,
            b"gid" => self.gid = parsed(value, small_number)?,
            b"mtime" => self.mtime = parsed(value, time)?,
            b"atime" => self.atime = parsed(value, time)?,
            b"SCHILY.devmajor" => self.device_major = parsed(value, small_number)?,
            b"SCHILY.devminor" => self.device_minor = parsed(value, small_number)?,
            b"SCHILY.acl.access" | b"SCHILY.acl.default" if self.without_xattrs => {}
            b"SCHILY.acl.access" => self.acl_access = bytes(),
            b"SCHILY.acl.default" => self.acl_default = bytes(),
            _ => {
                if let Some(name) = key.strip_prefix(XATTR) {
                    if !self.is_wanted(name) {
                        return Some(());
                    }
                    // An attribute may have an empty value.
                    self.xattrs.insert(xattr_name(name), value.to_vec());
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.set(key, value)?;
                }
            }
        }
        Some(())
    }
}

impl SparseRecords {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"major" => self.version.0 = parsed(value, number)?,
            b"minor" => self.version.1 = parsed(value, number)?,
            b"size" | b"realsize" => self.size = parsed(value, number)?,
            b"offset" | b"numbytes" => self.numbers.push(number(value)?),
            b"map" => {
                self.numbers =
                    value.split(|byte| *byte == b',').map(number).collect::<Option<_>>()?;
            }
            _ => {}
        }
        Some(())
    }
}

/// Returns key and value of the first record, and what follows.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(number(&bytes[..space])?).ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}

/// Returns the name of an attribute from its key (law 3).
fn xattr_name(mut keyword: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(keyword.len());
    while let Some((first, rest)) = keyword.split_first() {
        let (byte, rest) = match keyword {
            [b'%', b'3', b'D', rest @ ..] => (b'=', rest),
            [b'%', b'2', b'5', rest @ ..] => (b'%', rest),
            _ => (*first, rest),
        };
        name.push(byte);
        keyword = rest;
    }
    name
}

/// Parses a value that is not empty. The inner `None` is that of an empty value.
#[expect(clippy::option_option, reason = "absent and wrong differ")]
fn parsed<T>(value: &[u8], parse: impl Fn(&[u8]) -> Option<T>) -> Option<Option<T>> {
    if value.is_empty() { Some(None) } else { parse(value).map(Some) }
}

pub(super) fn number(digits: &[u8]) -> Option<u64> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

fn small_number(digits: &[u8]) -> Option<u32> {
    number(digits).and_then(|number| u32::try_from(number).ok())
}

/// Parses seconds with a fraction, of which the nanoseconds count: `-1.75` is 250 ms after -2 s.
fn time(value: &[u8]) -> Option<Time> {
    let (is_negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let point = value.iter().position(|byte| *byte == b'.');
    let (secs, fraction) = point.map_or((value, &[][..]), |at| (&value[..at], &value[at + 1..]));
    number(fraction.get(..fraction.len().min(19))?).or_else(|| fraction.is_empty().then_some(0))?;
    let secs = i64::try_from(number(secs)?).ok()?;
    let digits = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanos) {
        (false, _) => Time { secs, nanos },
        (true, 0) => Time { secs: -secs, nanos },
        (true, _) => Time { secs: -secs - 1, nanos: 1_000_000_000 - nanos },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_and_taken_back() {
        let mut records = Records::default();
        records.add(b"9 path=x\n24 SCHILY.xattr.user.a=\n18 GNU.sparse.x=1\n11 size=77\n").unwrap();
        assert_eq!((records.path.as_deref(), records.size), (Some(&b"x"[..]), Some(77)));
        assert_eq!(records.xattrs.len(), 1);
        records.add(b"8 path=\n8 size=\n").unwrap();
        assert_eq!((records.path, records.size), (None, None));
        for wrong in [
            &b"11 path=x\n"[..],
            b"8 path=x\n",
            b"path=x\n",
            b"99999999999999999999 path=x\n",
            b"9 path:x\n",
            b"0 path=x\n",
            b"11 size=-1\n",
            b"18446744073709551615 a=b\n",
        ] {
            assert!(Records::default().add(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_of_attributes_are_decoded_once() {
        let mut records = Records::default();
        records.add(b"38 SCHILY.xattr.user.a%3Db%253D%3d==v\n").unwrap();
        let (name, value) = records.xattrs.pop_first().unwrap();
        assert_eq!((&name[..], &value[..]), (&b"user.a=b%3D%3d"[..], &b"=v"[..]));
        for same in ["user.50%", "user.%", "user.%2", "user.%41%0A"] {
            assert_eq!(xattr_name(same.as_bytes()), same.as_bytes());
        }
    }

    #[test]
    fn what_is_not_copied_is_not_kept() {
        let bytes = [
            "24 SCHILY.xattr.user.a=\n28 SCHILY.xattr.security.b=\n",
            "25 SCHILY.xattr.system.=\n23 SCHILY.xattr.userb=\n31 SCHILY.acl.access=user::rwx\n",
        ];
        let bytes = bytes.concat().into_bytes();
        let mut records = Records::default();
        records.add(&bytes).unwrap();
        assert_eq!(records.xattrs.len(), 2);
        assert!(records.acl_access.is_some() && records.kept_bytes() > 128);
        let mut without = Records { without_xattrs: true, ..Records::default() };
        without.add(&bytes).unwrap();
        assert!(without.xattrs.is_empty() && without.acl_access.is_none());
        assert_eq!(without.kept_bytes(), 0);
    }

    #[test]
    fn times_have_fractions_and_signs() {
        let check = |text: &str, want| {
            let want: Option<(i64, u32)> = want;
            let want = want.map(|(secs, nanos)| Time { secs, nanos });
            assert_eq!(time(text.as_bytes()), want, "{text}");
        };
        check("12", Some((12, 0)));
        check("12.5", Some((12, 500_000_000)));
        check("12.", Some((12, 0)));
        check("12.1234567891", Some((12, 123_456_789)));
        check("-1.75", Some((-2, 250_000_000)));
        check("-1", Some((-1, 0)));
        for wrong in ["", "-", "x", "1.x", "--1", ".5", "1e5", "99999999999999999999"] {
            check(wrong, None);
        }
    }
}
