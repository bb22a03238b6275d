//! Unusual names: every byte, every length, equal hashes, large directories.

use super::seeded::Seeded;
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The reflected polynomial of crc32c.
const CRC32C: u32 = 0x82f6_3b78;

pub fn everything(root: &Path) -> Result<()> {
    odd(root)?;
    let colliding = root.join("colliding");
    fs::create_dir(&colliding)?;
    for name in colliding_names(40, 24, 1) {
        fs::write(child(&colliding, &name), &name)?;
    }
    deep(root, 30)
}

/// Returns the path of a name of any bytes.
pub fn child(dir: &Path, name: &[u8]) -> PathBuf {
    dir.join(OsStr::from_bytes(name))
}

/// Makes names of 1 and 255 bytes, names that are not UTF-8, and names that look like options.
pub fn odd(root: &Path) -> Result<()> {
    let dir = root.join("odd-names");
    fs::create_dir(&dir)?;
    for byte in (1..=255_u8).filter(|byte| *byte != b'/' && *byte != b'.') {
        fs::write(child(&dir, &[byte]), [byte])?;
    }
    for name in ["...", " leading", "trailing ", "new\nline", "back\\slash", "-rf", "caf\u{e9}"] {
        fs::write(dir.join(name), name)?;
    }
    fs::write(child(&dir, b"\xff\xfe not utf-8 \x80"), "bytes")?;
    for byte in [b'l', 0xe9, 0xff] {
        fs::write(child(&dir, &[byte; 255]), "long")?;
        fs::write(child(&dir, &[byte; 254]), "almost as long")?;
    }
    fs::create_dir(child(&dir, &[b'd'; 255]))?;
    fs::write(child(&child(&dir, &[b'd'; 255]), &[0xf0; 255]), "in a long directory")?;
    Ok(())
}

/// Makes nested directories.
pub fn deep(root: &Path, depth: usize) -> Result<()> {
    let mut at = root.join("deep");
    for level in 0..depth {
        at.push(format!("level-{level}"));
    }
    fs::create_dir_all(&at)?;
    fs::write(at.join("bottom"), "the bottom")?;
    Ok(())
}

/// Makes one directory with this many entries: mostly files, and some of other types.
pub fn crowd(dir: &Path, entries: usize) -> Result<()> {
    fs::create_dir(dir)?;
    for number in 0..entries {
        let path = dir.join(format!("entry-{number:06}-{:x}", number * 7919));
        match number % 100 {
            0 => fs::create_dir(path)?,
            1 => std::os::unix::fs::symlink(format!("entry-{:06}", number + 1), path)?,
            2..10 => fs::write(path, format!("file {number}\n"))?,
            _ => drop(fs::File::create(path).context("creating")?),
        }
    }
    Ok(())
}

/// Returns names of one length that all have the same directory hash (crc32c).
///
/// Each name is a readable prefix and four bytes that bring the checksum to the wanted value. Names
/// of equal length collide under every seed, which the hash of extended references needs.
pub fn colliding_names(count: usize, prefix_bytes: usize, seed: u64) -> Vec<Vec<u8>> {
    colliding_names_after(b"", count, prefix_bytes, seed)
}

/// Returns such names that begin with `start`.
pub fn colliding_names_after(
    start: &[u8],
    count: usize,
    prefix_bytes: usize,
    seed: u64,
) -> Vec<Vec<u8>> {
    let mut seeded = Seeded::new(seed);
    let wanted = 0x0bad_cafe;
    let mut names = Vec::new();
    while names.len() < count {
        let mut name = start.to_vec();
        name.extend_from_slice(format!("same-hash-{:016x}", seeded.word()).as_bytes());
        name.resize(prefix_bytes, b'_');
        let tail = forge(register(!1, &name), wanted);
        if tail.iter().all(|byte| !matches!(byte, 0 | b'/')) {
            name.extend_from_slice(&tail);
            names.push(name);
        }
    }
    names
}

/// Returns the checksum register after `bytes`, without the inversion before and after.
fn register(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, byte| step(crc ^ u32::from(*byte)))
}

fn step(mut crc: u32) -> u32 {
    for _ in 0..8 {
        crc = if crc & 1 == 1 { (crc >> 1) ^ CRC32C } else { crc >> 1 };
    }
    crc
}

/// Returns four bytes that bring the register from `from` to `to`: the register is run backward
/// over four zero bytes, and the difference is what the bytes must add.
fn forge(from: u32, to: u32) -> [u8; 4] {
    let mut crc = to;
    for _ in 0..32 {
        crc = if crc >> 31 == 1 { ((crc ^ CRC32C) << 1) | 1 } else { crc << 1 };
    }
    let [a, b, c, d] = (crc ^ from).to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forged_names_have_one_hash_and_differ() {
        let names = colliding_names(20, 30, 9);
        for name in &names {
            assert_eq!(register(!1, name), 0x0bad_cafe);
            assert_eq!(register(257, name), register(257, &names[0]));
        }
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), 20);
    }
}
