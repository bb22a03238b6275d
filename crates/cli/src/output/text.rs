//! Formats names, modes and UUIDs.
//!
//! A name is a byte string. On a terminal, unprintable characters are escaped (`\n`, `\xff`, `\\`),
//! so that a malicious name cannot control the terminal. To a pipe or file it is written unchanged.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStringExt;

use butternut::FileKind;

pub(crate) use butternut_sys::text::{escaped, is_control, lines, one_line};

/// Returns the bytes to print for a name.
pub(crate) fn name(name: &[u8], terminal: bool) -> Vec<u8> {
    if terminal { escaped(name).into_bytes() } else { name.to_vec() }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

pub(crate) fn uuid(bytes: &[u8; 16]) -> String {
    let all = hex(bytes);
    [&all[..8], &all[8..12], &all[12..16], &all[16..20], &all[20..]].join("-")
}

/// Formats a UUID, or returns `-` if it is all zeros.
pub(crate) fn uuid_or_dash(bytes: &[u8; 16]) -> String {
    if bytes.iter().all(|byte| *byte == 0) { "-".to_owned() } else { uuid(bytes) }
}

/// Formats type and mode as in `drwxr-sr-x`.
pub(crate) fn mode(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (bits & 1 == 0, mode & special == 0) {
            (false, true) => 'x',
            (true, true) => '-',
            (false, false) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// Returns the file type in the words of stat(1).
pub(crate) fn kind(kind: FileKind, empty: bool) -> &'static str {
    match kind {
        FileKind::File if empty => "regular empty file",
        FileKind::File => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character special file",
        FileKind::BlockDevice => "block special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// Returns the file type in one word, for JSON.
pub(crate) fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char_device",
        FileKind::BlockDevice => "block_device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// The flags of an inode by their names in chattr and btrfs property terms.
pub(crate) fn inode_flags(flags: u64) -> Vec<&'static str> {
    const NAMES: [&str; 12] = [
        "nodatasum",
        "nodatacow",
        "readonly",
        "nocompress",
        "prealloc",
        "sync",
        "immutable",
        "append",
        "nodump",
        "noatime",
        "dirsync",
        "compress",
    ];
    let low = NAMES.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 == 1);
    let mut names: Vec<&str> = low.map(|(_, name)| *name).collect();
    if flags >> 32 & 1 == 1 {
        names.push("verity");
    }
    names
}

/// A path of the volume from two parts.
pub(crate) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if !path.ends_with(b"/") && !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns a number with what it counts: `one` after 1, and `many` after every other number.
pub(crate) fn counted(count: impl TryInto<u64>, one: &str, many: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
    format!("{count} {}", if count == 1 { one } else { many })
}

pub(crate) fn bytes(word: &OsString) -> Vec<u8> {
    word.clone().into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_names_are_escaped() {
        assert_eq!(escaped(b"plain name"), "plain name");
        assert_eq!(escaped(b"a\nb\\c"), "a\\nb\\\\c");
        assert_eq!(escaped(b"\x1b[2J"), "\\u{1b}[2J");
        assert_eq!(escaped(b"bad\xff"), "bad\\xff");
        assert_eq!(escaped("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        assert_eq!(name(b"\xff", false), b"\xff");
    }

    #[test]
    fn only_one_is_singular() {
        let shown = [0_usize, 1, 2].map(|count| counted(count, "entry", "entries"));
        assert_eq!(shown, ["0 entries", "1 entry", "2 entries"]);
    }

    #[test]
    fn modes_show_special_bits() {
        assert_eq!(mode(FileKind::File, 0o104_755), "-rwsr-xr-x");
        assert_eq!(mode(FileKind::File, 0o102_644), "-rw-r-Sr--");
        assert_eq!(mode(FileKind::Directory, 0o041_777), "drwxrwxrwt");
    }
}
