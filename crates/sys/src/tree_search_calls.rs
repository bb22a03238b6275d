//! The ioctls of btrfs that read its trees, on an open file of a mounted volume. As
//! [`crate::subvolume_calls`], but what they return is read from the volume, so it is checked here.
//!
//! ```text
//! struct btrfs_ioctl_search_args
//! 0      8             24          40           56       64         72       104
//! | tree | objectids   | offsets   | generations| types  | nr_items | unused | results, 3992 bytes
//!          min, max      min, max    min, max     u32 each
//!
//! one result
//! 0            8          16       24     28       32
//! | generation | objectid | offset | type | length | data
//! ```

#![expect(clippy::host_endian_bytes, reason = "numbers in arguments of calls are in host order")]

use std::io;
use std::ops::{ControlFlow, RangeInclusive};
use std::os::fd::BorrowedFd;

use crate::subvolume_calls::Arguments;

const TREE_SEARCH: libc::c_ulong = 0xd000_9411;
const INO_LOOKUP: libc::c_ulong = 0xd000_9412;

/// Size of the arguments of both calls, in bytes.
const ARGUMENT_BYTES: usize = 4096;
const COUNT_AT: usize = 64;
const RESULTS_AT: usize = 104;
const RESULT_HEADER_BYTES: usize = 32;
/// Where the path begins in the arguments of `INO_LOOKUP`.
const PATH_AT: usize = 16;

/// The key of an item: object id, type and offset.
pub type ItemKey = (u64, u8, u64);

/// Calls `visit` with the key and the data of each item of a tree with keys in a range, in key
/// order, until it breaks off. Items that do not fit into one call come without data.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOENT` if there is no such tree; `ENOTTY` where the
/// filesystem has no such call; `InvalidData` for a result that is not what was asked for.
pub fn search(
    fd: BorrowedFd<'_>,
    tree: u64,
    keys: RangeInclusive<ItemKey>,
    visit: &mut dyn FnMut(ItemKey, &[u8]) -> ControlFlow<()>,
) -> io::Result<()> {
    let (mut from, to) = keys.into_inner();
    while from <= to {
        let results = search_once(fd, tree, from, to)?;
        let (mut rest, mut last) = (&results[RESULTS_AT..], None);
        for _ in 0..u32_at(&results, COUNT_AT)? {
            let key = (u64_at(rest, 8)?, type_at(rest)?, u64_at(rest, 16)?);
            let length = usize::try_from(u32_at(rest, 28)?).unwrap_or(usize::MAX);
            let data = rest.get(RESULT_HEADER_BYTES..).unwrap_or_default();
            let (data, behind) = data.split_at_checked(length).ok_or_else(invalid)?;
            // Each result is behind the one before, so the search ends.
            if key < from || key > to || last.is_some_and(|last| key <= last) {
                return Err(invalid());
            }
            if visit(key, data).is_break() {
                return Ok(());
            }
            (rest, last) = (behind, Some(key));
        }
        match last.and_then(successor) {
            Some(next) => from = next,
            None => break,
        }
    }
    Ok(())
}

fn search_once(
    fd: BorrowedFd<'_>,
    tree: u64,
    from: ItemKey,
    to: ItemKey,
) -> io::Result<[u8; ARGUMENT_BYTES]> {
    let words = [tree, from.0, to.0, from.2, to.2, 0, u64::MAX];
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let halves = [u32::from(from.1), u32::from(to.1), u32::MAX];
    let halves: Vec<u8> = halves.iter().flat_map(|half| half.to_ne_bytes()).collect();
    let mut arguments = Arguments::new().put(0, &words)?.put(words.len(), &halves)?;
    arguments.call(fd, TREE_SEARCH)?;
    Ok(arguments.0)
}

/// Returns one path of an inode, from the root of its subvolume, without slashes at its ends.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOENT` if there is no such inode; `ENOTTY` where the
/// filesystem has no such call.
pub fn path_of_inode(fd: BorrowedFd<'_>, subvolume: u64, inode: u64) -> io::Result<Vec<u8>> {
    let mut arguments = Arguments::<ARGUMENT_BYTES>::new()
        .put(0, &subvolume.to_ne_bytes())?
        .put(size_of::<u64>(), &inode.to_ne_bytes())?;
    arguments.call(fd, INO_LOOKUP)?;
    let path = &arguments.0[PATH_AT..];
    let end = path.iter().position(|byte| *byte == 0).ok_or_else(invalid)?;
    let path = &path[..end];
    Ok(path.strip_suffix(b"/").unwrap_or(path).to_vec())
}

fn successor((objectid, item_type, offset): ItemKey) -> Option<ItemKey> {
    if let Some(offset) = offset.checked_add(1) {
        return Some((objectid, item_type, offset));
    }
    match item_type.checked_add(1) {
        Some(item_type) => Some((objectid, item_type, 0)),
        None => objectid.checked_add(1).map(|objectid| (objectid, 0, 0)),
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the filesystem returned an invalid search result")
}

fn type_at(result: &[u8]) -> io::Result<u8> {
    u8::try_from(u32_at(result, 24)?).map_err(|_| invalid())
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).ok_or_else(invalid)?;
    Ok(u32::from_ne_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> io::Result<u64> {
    let word = bytes.get(at..).and_then(|bytes| bytes.first_chunk()).ok_or_else(invalid)?;
    Ok(u64::from_ne_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn keys_have_successors_up_to_the_last() {
        assert_eq!(successor((1, 2, 3)), Some((1, 2, 4)));
        assert_eq!(successor((1, 2, u64::MAX)), Some((1, 3, 0)));
        assert_eq!(successor((1, u8::MAX, u64::MAX)), Some((2, 0, 0)));
        assert_eq!(successor((u64::MAX, u8::MAX, u64::MAX)), None);
    }

    #[test]
    fn other_filesystems_are_refused() {
        let dir = std::fs::File::open("/proc").expect("/proc is mounted");
        let keys = (0, 0, 0)..=(u64::MAX, u8::MAX, u64::MAX);
        let refused = search(dir.as_fd(), 1, keys, &mut |_, _| ControlFlow::Continue(()))
            .map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENOTTY)));
        let refused = path_of_inode(dir.as_fd(), 5, 256).map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::ENOTTY)));
    }
}
