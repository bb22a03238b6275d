//! [`Reader`]: the members of an archive, in its order: in the formats of POSIX (ustar, pax) and of
//! GNU tar, with their long names and sparse files.
//!
//! 1. The archive is not trusted: headers are checked, and what is kept of a member is bounded,
//!    also of one with many headers, as is what is kept of the headers for all members. Its data is
//!    read in parts.
//! 2. An archive without its end was truncated, and is an error: what is missing cannot be known.
//! 3. Every failure names the archive, and the member if its name is known.

use std::io::{ErrorKind, Read};
use std::sync::Arc;

use ::tar::{GnuExtSparseHeader, GnuSparseHeader, Header};
use butternut::{FileKind, Time};

use super::super::entry::Attributes;
use super::acl;
use super::records::{Records, number};
use super::sparse::{Map, RANGES_MAX};
use crate::failure::Failure;
use crate::output::text;

const BLOCK_BYTES: usize = 512;
/// Bytes that are read at once behind the end of an archive.
const DRAIN_BYTES: usize = 64 << 10;
/// Maximum size of the headers before a member, in all; and of what is kept of those for all
/// members, which each member may copy (law 1).
const RECORDS_BYTES_MAX: u64 = 16 << 20;
const GLOBAL_BYTES_MAX: u64 = 64 << 10;
/// Maximum size of the header with a name.
const NAME_BYTES_MAX: u64 = 64 << 10;
/// The length at which a target is no path any more (`PATH_MAX`).
const TARGET_BYTES_MAX: usize = 4096;
/// Maximum length of a name, which may be longer than a path that programs can open, as in archives
/// of deep trees; and of its directories, so that commands can remove what was extracted.
const PATH_BYTES_MAX: usize = 64 << 10;
const LEVELS_MAX: usize = 2048;
/// Longer names are shortened in messages.
const SHOWN_BYTES_MAX: usize = 512;
/// The user and the group id that no file has.
const NO_ID: u32 = u32::MAX;

/// Names and values of extended attributes.
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a member is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file of the kind that its attributes have. `target` is that of a symlink.
    File { target: Vec<u8> },
    /// Another name of the member with this one.
    HardLink { target: Vec<u8> },
}

/// A member of an archive.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) attributes: Attributes,
    /// Where the data belongs in a file with holes.
    pub(super) map: Option<Map>,
}

pub(super) struct Reader<R> {
    from: R,
    shown: String,
    /// The name of the current member, for messages.
    current: Vec<u8>,
    globals: Arc<Records>,
    /// Bytes of data of the current member that were not read yet, and zeros behind them.
    left: u64,
    padding: u64,
    has_headers: bool,
    has_members: bool,
}

/// What precedes the header of a member.
#[derive(Default)]
struct Before {
    /// The size of all headers.
    bytes: u64,
    records: Option<Records>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl<R: Read> Reader<R> {
    /// Without `xattrs`, extended attributes and access lists are ignored.
    pub(super) fn new(from: R, shown: String, xattrs: bool) -> Self {
        let globals = Records { without_xattrs: !xattrs, ..Records::default() };
        let (current, globals) = (Vec::new(), Arc::new(globals));
        let (has_headers, has_members) = (false, false);
        Self { from, shown, current, globals, left: 0, padding: 0, has_headers, has_members }
    }

    /// Reads the headers of the next member; `None` at the end of the archive.
    pub(super) fn next(&mut self) -> Result<Option<Member>, Failure> {
        let mut before = Before::default();
        loop {
            self.skip_data()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let stored = self.number(&header.as_old().size, "size")?;
            let stored = u64::try_from(stored).map_err(|_| self.failed("has a negative size"))?;
            let kind = header.as_old().linkflag[0];
            if let b'x' | b'X' | b'g' | b'L' | b'K' = kind {
                self.start_data(stored);
                self.special(kind, &mut before)?;
                continue;
            }
            if kind == b'V' {
                // The label of the archive.
                self.start_data(stored);
                continue;
            }
            return self.member(&header, stored, before).map(Some);
        }
    }

    /// Reads data of the current member. Returns 0 at its end.
    pub(super) fn read_data(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let part = usize::try_from(self.left).unwrap_or(buffer.len()).min(buffer.len());
        self.fill(part, buffer)?;
        self.left -= part as u64;
        Ok(part)
    }

    /// Describes a failure at the current member (law 3).
    pub(super) fn failed(&self, why: impl Into<String>) -> Failure {
        if self.current.is_empty() {
            return Failure::new(self.shown.clone(), why);
        }
        Failure::new(format!("{}: {}", self.shown, text::escaped(&self.current)), why)
    }

    /// Reads the special member before a member.
    fn special(&mut self, kind: u8, before: &mut Before) -> Result<(), Failure> {
        let bytes_max = match kind {
            b'g' => GLOBAL_BYTES_MAX,
            b'L' | b'K' => NAME_BYTES_MAX,
            _ => RECORDS_BYTES_MAX,
        };
        if self.left > bytes_max {
            return Err(self.failed(format!("has a header of {} bytes", self.left)));
        }
        before.bytes += if kind == b'g' { 0 } else { self.left };
        if before.bytes > RECORDS_BYTES_MAX {
            return Err(self.failed(format!("has headers of {} bytes before it", before.bytes)));
        }
        let mut bytes = vec![0; usize::try_from(self.left).unwrap_or(0)];
        self.read_data(&mut bytes)?;
        match kind {
            b'L' => before.name = Some(until_zero(&bytes).to_vec()),
            b'K' => before.link = Some(until_zero(&bytes).to_vec()),
            _ => {
                let failed = |part| format!("has a pax header with a damaged record: {part}");
                if kind == b'g' {
                    let added = Arc::make_mut(&mut self.globals).add(&bytes);
                    added.map_err(|part| self.failed(failed(part)))?;
                    return self.check_globals();
                }
                let globals = || Records::clone(&self.globals);
                let mut records = before.records.take().unwrap_or_else(globals);
                records.add(&bytes).map_err(|part| self.failed(failed(part)))?;
                before.records = Some(records);
            }
        }
        Ok(())
    }

    fn check_globals(&self) -> Result<(), Failure> {
        let bytes = self.globals.kept_bytes();
        if bytes as u64 <= GLOBAL_BYTES_MAX {
            return Ok(());
        }
        Err(self.failed(format!("has headers for all members of {bytes} bytes")))
    }

    /// Checks the length of the name of the current member, and of what it links to: a name, or the
    /// target of a symlink.
    fn check_paths(&self, name: &[u8], link: &[u8], is_symlink: bool) -> Result<(), Failure> {
        let link_max = if is_symlink { TARGET_BYTES_MAX - 1 } else { PATH_BYTES_MAX };
        for (what, path, max) in [("name", name, PATH_BYTES_MAX), ("target", link, link_max)] {
            let bytes = path.len();
            if bytes > max {
                return Err(self.failed(format!("has a {what} of {bytes} bytes, above {max}")));
            }
        }
        let levels = name.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count();
        if levels > LEVELS_MAX {
            return Err(
                self.failed(format!("has {levels} levels of directories, above {LEVELS_MAX}"))
            );
        }
        Ok(())
    }

    fn member(&mut self, header: &Header, stored: u64, before: Before) -> Result<Member, Failure> {
        let mut records = before.records.map_or_else(|| Arc::clone(&self.globals), Arc::new);
        let path = records.sparse.name.as_ref().or(records.path.as_ref()).cloned();
        let name = path.or(before.name).unwrap_or_else(|| name_of(header));
        self.current = shortened(&name);
        self.has_members = true;
        let link = records.link_path.clone().or(before.link);
        let link = link.unwrap_or_else(|| until_zero(&header.as_old().linkname).to_vec());
        let flag = header.as_old().linkflag[0];
        self.check_paths(&name, &link, flag == b'2')?;
        let is_file = matches!(flag, 0 | b'0' | b'7' | b'S');
        let file_kind = match flag {
            _ if is_file && name.ends_with(b"/") => FileKind::Directory,
            _ if is_file => FileKind::File,
            b'1' => FileKind::File,
            b'2' => FileKind::Symlink,
            b'3' => FileKind::CharDevice,
            b'4' => FileKind::BlockDevice,
            b'5' | b'D' => FileKind::Directory,
            b'6' => FileKind::Fifo,
            b'M' => return Err(self.failed("is the rest of a file of another volume")),
            _ => {
                let shown = char::from(flag).escape_default();
                return Err(self.failed(format!("is a member of the unknown type '{shown}'")));
            }
        };
        let is_link = flag == b'1';
        let mut attributes = self.attributes(header, &mut records, file_kind)?;
        let stored = if is_link { 0 } else { records.size.unwrap_or(stored) };
        let map = if flag == b'S' {
            Some(self.old_map(header, stored)?)
        } else if is_file {
            self.pax_map(&records, stored)?
        } else {
            self.start_data(stored);
            None
        };
        let is_data = file_kind == FileKind::File && !is_link;
        attributes.size = map.as_ref().map_or(if is_data { stored } else { 0 }, |map| map.size);
        let kind =
            if is_link { Kind::HardLink { target: link } } else { Kind::File { target: link } };
        Ok(Member { name, kind, attributes, map })
    }

    fn attributes(
        &self,
        header: &Header,
        records: &mut Arc<Records>,
        kind: FileKind,
    ) -> Result<Attributes, Failure> {
        let old = header.as_old();
        let small = |field: &[u8], name: &str| -> Result<u32, Failure> {
            let number = self.number(field, name)?;
            u32::try_from(number).map_err(|_| self.failed(format!("has the {name} {number}")))
        };
        let id = |record: Option<u32>, field: &[u8], name: &str| -> Result<u32, Failure> {
            let id = record.map_or_else(|| small(field, name), Ok)?;
            if id == NO_ID {
                return Err(self.failed(format!("has the {name} {id}, which no file can have")));
            }
            Ok(id)
        };
        let device =
            |field: Option<&[u8; 8]>, name| field.map_or(Ok(0), |field| small(field, name));
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let ustar = header.as_ustar().map(|header| (&header.dev_major, &header.dev_minor));
        let numbers = ustar
            .or_else(|| header.as_gnu().map(|header| (&header.dev_major, &header.dev_minor)))
            .filter(|_| is_device);
        let rdev = if is_device {
            let major = records
                .device_major
                .map_or_else(|| device(numbers.map(|(major, _)| major), "device number"), Ok);
            let minor = records
                .device_minor
                .map_or_else(|| device(numbers.map(|(_, minor)| minor), "device number"), Ok);
            (major?, minor?)
        } else {
            (0, 0)
        };
        let mtime = match records.mtime {
            Some(time) => time,
            None => Time { secs: self.number(&old.mtime, "time")?, nanos: 0 },
        };
        Ok(Attributes {
            kind,
            permissions: small(&old.mode, "mode")? & 0o7777,
            uid: id(records.uid, &old.uid, "owner")?,
            gid: id(records.gid, &old.gid, "group")?,
            rdev,
            size: 0,
            nlink: 1,
            identity: (0, 0),
            atime: records.atime.unwrap_or(mtime),
            mtime,
            xattrs: self.xattrs(records)?,
        })
    }

    fn xattrs(&self, records: &mut Arc<Records>) -> Result<Xattrs, Failure> {
        let found = match Arc::get_mut(records) {
            // The records are of this member.
            Some(records) => std::mem::take(&mut records.xattrs),
            None => records.xattrs.clone(),
        };
        let mut xattrs: Vec<_> = found.into_iter().collect();
        for (name, list) in [
            (&b"system.posix_acl_access"[..], &records.acl_access),
            (b"system.posix_acl_default", &records.acl_default),
        ] {
            let Some(list) = list else { continue };
            let value = acl::value_of(list).map_err(|entry| {
                self.failed(format!("has an access list with the entry {entry:?}")).hint(
                    "its users and groups must be numbers, or names of this machine; --no-xattrs \
                     leaves out extended attributes and access lists",
                )
            })?;
            xattrs.push((name.to_vec(), value));
        }
        Ok(xattrs)
    }

    /// The map of GNU tar's old format: in the header, and in blocks behind it.
    fn old_map(&mut self, header: &Header, stored: u64) -> Result<Map, Failure> {
        let Some(gnu) = header.as_gnu() else {
            return Err(self.failed("is a sparse file in a header that is not of GNU tar"));
        };
        let mut numbers = Vec::new();
        let mut add = |reader: &Self, part: &GnuSparseHeader| -> Result<bool, Failure> {
            let is_used = part.numbytes[0] != 0;
            if is_used {
                for field in [&part.offset, &part.numbytes] {
                    numbers.push(reader.positive(field)?);
                }
            }
            Ok(is_used && numbers.len() <= 2 * RANGES_MAX)
        };
        let size = self.positive(&gnu.realsize)?;
        for part in &gnu.sparse {
            add(self, part)?;
        }
        let mut is_extended = gnu.isextended[0] != 0;
        while is_extended {
            let mut block = GnuExtSparseHeader::new();
            self.fill(BLOCK_BYTES, block.as_mut_bytes())?;
            let mut is_used = true;
            for part in &block.sparse {
                is_used &= add(self, part)?;
            }
            is_extended = is_used && block.isextended[0] != 0;
        }
        self.start_data(stored);
        Map::check(size, &numbers, stored).map_err(|why| self.failed(why))
    }

    /// The map of GNU tar's formats in pax records, of version 0.0 to 1.0.
    fn pax_map(&mut self, records: &Records, stored: u64) -> Result<Option<Map>, Failure> {
        self.start_data(stored);
        let sparse = &records.sparse;
        let missing = || "is a sparse file without its size";
        match sparse.version {
            (Some(1), Some(0)) => {
                let size = sparse.size.ok_or_else(|| self.failed(missing()))?;
                let numbers = self.read_map()?;
                let map = Map::check(size, &numbers, self.left);
                map.map(Some).map_err(|why| self.failed(why))
            }
            (None | Some(0), _) => {
                if sparse.numbers.is_empty() && sparse.size.is_none() {
                    return Ok(None);
                }
                let size = sparse.size.ok_or_else(|| self.failed(missing()))?;
                let map = Map::check(size, &sparse.numbers, stored);
                map.map(Some).map_err(|why| self.failed(why))
            }
            (Some(major), minor) => {
                let minor = minor.unwrap_or(0);
                Err(self.failed(format!("is a sparse file of the unknown format {major}.{minor}")))
            }
        }
    }

    /// Reads the map before the data, of version 1.0: lines with numbers, padded to a block.
    fn read_map(&mut self) -> Result<Vec<u64>, Failure> {
        let (mut numbers, mut wanted, mut digits) = (Vec::new(), None, Vec::new());
        let mut block = [0; BLOCK_BYTES];
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            if self.read_data(&mut block)? < BLOCK_BYTES {
                return Err(self.failed("has a sparse map that is not complete"));
            }
            for byte in block {
                if byte != b'\n' {
                    digits.push(byte);
                    continue;
                }
                let found = number(&digits).filter(|_| !digits.is_empty());
                let found = found.ok_or_else(|| self.failed("has a damaged sparse map"))?;
                digits.clear();
                match wanted {
                    None => {
                        let ranges = usize::try_from(found).ok().filter(|it| *it <= RANGES_MAX);
                        let many = || self.failed(format!("has a sparse map of {found} ranges"));
                        wanted = Some(2 * ranges.ok_or_else(many)?);
                    }
                    Some(_) => numbers.push(found),
                }
                if wanted.is_some_and(|wanted| numbers.len() >= wanted) {
                    break;
                }
            }
            if digits.len() > BLOCK_BYTES {
                return Err(self.failed("has a damaged sparse map"));
            }
        }
        Ok(numbers)
    }

    /// Reads a header; `None` at the end of the archive. What follows the end is read, too: the
    /// program that writes a pipe may fail otherwise.
    fn header(&mut self) -> Result<Option<Header>, Failure> {
        let mut zeros = 0;
        loop {
            let mut header = Header::new_old();
            let filled = self.fill_or_end(header.as_mut_bytes())?;
            if filled == 0 && zeros > 0 {
                return Ok(None);
            }
            if filled < BLOCK_BYTES {
                return Err(self.truncated("ends without the end mark of an archive"));
            }
            if header.as_bytes().iter().any(|byte| *byte != 0) {
                self.check(&header)?;
                self.has_headers = true;
                return Ok(Some(header));
            }
            zeros += 1;
            if zeros == 2 {
                self.drain()?;
                return Ok(None);
            }
        }
    }

    /// Reads what follows the end. An archive without members is zeros only, and an image of a disk
    /// may begin with zeros.
    fn drain(&mut self) -> Result<(), Failure> {
        let mut buffer = vec![0; DRAIN_BYTES];
        loop {
            let filled = self.fill_or_end(&mut buffer)?;
            if !self.has_headers && buffer[..filled].iter().any(|byte| *byte != 0) {
                return Err(self.not_an_archive());
            }
            if filled < buffer.len() {
                return Ok(());
            }
        }
    }

    fn not_an_archive(&self) -> Failure {
        self.failed("is not an archive of tar").hint("leave out --tar to copy a file")
    }

    /// Checks the checksum of a header, which is of unsigned bytes, or in old archives of signed
    /// ones.
    fn check(&self, header: &Header) -> Result<(), Failure> {
        let old = header.as_old();
        let spaces = 8 * i64::from(b' ');
        let sum = |value: fn(u8) -> i64| {
            let field: i64 = old.cksum.iter().map(|byte| value(*byte)).sum();
            header.as_bytes().iter().map(|byte| value(*byte)).sum::<i64>() - field + spaces
        };
        let found = field(&old.cksum);
        let signed = |byte: u8| i64::from(byte.cast_signed());
        if found == Some(sum(i64::from)) || found == Some(sum(signed)) {
            return Ok(());
        }
        if self.has_members {
            let why = "the header behind this member is damaged: its checksum is wrong";
            return Err(self.failed(why));
        }
        Err(self.not_an_archive())
    }

    fn start_data(&mut self, bytes: u64) {
        self.left = bytes;
        let block = BLOCK_BYTES as u64;
        self.padding = (block - bytes % block) % block;
    }

    fn skip_data(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; 16 * BLOCK_BYTES];
        while self.left > 0 {
            self.read_data(&mut buffer)?;
        }
        let padding = usize::try_from(std::mem::take(&mut self.padding)).unwrap_or(0);
        self.fill(padding, &mut buffer)
    }

    fn number(&self, bytes: &[u8], name: &str) -> Result<i64, Failure> {
        field(bytes).ok_or_else(|| self.failed(format!("has a {name} that is not a number")))
    }

    fn positive(&self, bytes: &[u8]) -> Result<u64, Failure> {
        let number = self.number(bytes, "sparse map")?;
        u64::try_from(number).map_err(|_| self.failed("has a damaged sparse map"))
    }

    fn truncated(&self, why: &str) -> Failure {
        if !self.has_headers {
            return self.not_an_archive();
        }
        self.failed(why).hint("it was truncated: nothing of it was imported")
    }

    /// Fills the first `bytes` bytes of a buffer.
    fn fill(&mut self, bytes: usize, buffer: &mut [u8]) -> Result<(), Failure> {
        let filled = self.fill_or_end(&mut buffer[..bytes])?;
        if filled == bytes {
            return Ok(());
        }
        Err(self.truncated("the archive ends in the middle of this member"))
    }

    /// Fills a buffer, or what the archive has left of it.
    fn fill_or_end(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.from.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    self.has_headers = true;
                    return Err(
                        self.truncated("the compressed data of the archive is not complete")
                    );
                }
                Err(error) => return Err(self.failed(error.to_string())),
            }
        }
        Ok(filled)
    }
}

/// Parses a field of a header: octal digits, or since GNU tar a binary number. Empty is 0.
fn field(bytes: &[u8]) -> Option<i64> {
    let first = *bytes.first()?;
    if first & 0x80 != 0 {
        let start = if first & 0x40 == 0 { i128::from(first & 0x3f) } else { -1 };
        let number = bytes[1..].iter().try_fold(start, |number, byte| {
            number.checked_mul(256).map(|number| number + i128::from(*byte))
        });
        return number.and_then(|number| i64::try_from(number).ok());
    }
    let digits = bytes.split(|byte| *byte == 0).next()?.trim_ascii();
    if digits.is_empty() {
        return Some(0);
    }
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    i64::from_str_radix(digits, 8).ok().filter(|number| *number >= 0)
}

fn name_of(header: &Header) -> Vec<u8> {
    let name = until_zero(&header.as_old().name);
    match header.as_ustar().map(|header| until_zero(&header.prefix)) {
        Some(prefix) if !prefix.is_empty() => [prefix, b"/", name].concat(),
        _ => name.to_vec(),
    }
}

/// Shortens a name for messages.
fn shortened(name: &[u8]) -> Vec<u8> {
    match name.get(..SHOWN_BYTES_MAX) {
        Some(start) => [start, b"..."].concat(),
        None => name.to_vec(),
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_octal_or_binary() {
        assert_eq!(field(b"0000644\0"), Some(0o644));
        assert_eq!(field(b"  644 \0\0"), Some(0o644));
        assert_eq!(field(b"\0\0\0\0"), Some(0));
        assert_eq!(field(b"\x80\0\0\0\0\0\x01\0"), Some(256));
        assert_eq!(field(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        for wrong in [&b"0000648\0"[..], b"-1\0", b"+1\0", &[0xbf; 12], &[0xc0; 20]] {
            assert_eq!(field(wrong), None, "{wrong:?}");
        }
    }
}
