//! Reads everything that the library shows of a filesystem.

use crate::bytes::Bytes;
use crate::content::{BLOCK_BYTES, Digest};
use crate::operation::{Moment, flags};
use crate::tree::{Kind, Node, Tree};
use anyhow::{Context, Result, ensure};
use butternut::{Error, FIRST_ENTRY, File, FileId, FileKind, Filesystem, TOP_LEVEL};
use std::collections::BTreeMap;

/// Files up to this size, in bytes, are read whole; of larger files only the data is read.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// Bits of an inode number in a test.
const SUBVOLUME_SHIFT: u32 = 40;

pub(super) fn tree(filesystem: &Filesystem, open: &BTreeMap<u8, File>) -> Result<Tree> {
    let mut nodes = BTreeMap::new();
    visit(filesystem, filesystem.root(), &Bytes::default(), &mut nodes)?;
    let mut slots = BTreeMap::new();
    for (slot, file) in open {
        let id = file.id();
        // The tree of a deleted subvolume cannot be found any more.
        let is_deleted = matches!(filesystem.xattr_names(id), Err(Error::Stale { .. }));
        let xattrs = if is_deleted { BTreeMap::new() } else { xattrs(filesystem, id)? };
        let mut node = node(filesystem, id, xattrs)?;
        node.content = contents(file, node.size)?;
        slots.insert(*slot, node);
    }
    Ok(Tree::from_numbered(nodes, slots))
}

fn visit(
    filesystem: &Filesystem,
    id: FileId,
    at: &Bytes,
    nodes: &mut BTreeMap<Bytes, (Node, u64)>,
) -> Result<()> {
    let xattrs = xattrs(filesystem, id).with_context(|| format!("xattrs of {at}"))?;
    let mut node = node(filesystem, id, xattrs).with_context(|| format!("reading {at}"))?;
    let kind = node.kind;
    match kind {
        Kind::File => {
            let file = filesystem.open_file(id).with_context(|| format!("opening {at}"))?;
            node.content = contents(&file, node.size).with_context(|| format!("reading {at}"))?;
        }
        Kind::Symlink => node.target = Bytes(filesystem.read_link(id)?),
        Kind::Directory | Kind::Fifo | Kind::Character | Kind::Block | Kind::Socket => {}
    }
    // Of the top level the inode number itself; no other subvolume's inode has the same number.
    let own = if id.is_placeholder() { u64::MAX - nodes.len() as u64 } else { id.ino };
    let number = own | (id.subvolume_id() ^ TOP_LEVEL) << SUBVOLUME_SHIFT;
    nodes.insert(at.clone(), (node, number));
    if kind == Kind::Directory {
        let listing = filesystem.read_dir(id, FIRST_ENTRY);
        for entry in listing.with_context(|| format!("listing {at}"))? {
            let entry = entry.with_context(|| format!("listing {at}"))?;
            let below = at.join(&entry.name);
            ensure!(!nodes.contains_key(&below), "{below} is listed twice");
            let found = filesystem.lookup(id, &entry.name);
            let found = found.with_context(|| format!("{below} is listed but not found"))?;
            ensure!(found == entry.id, "{below} is listed as {:?}, found as {found:?}", entry.id);
            visit(filesystem, entry.id, &below, nodes)?;
        }
    }
    Ok(())
}

fn xattrs(filesystem: &Filesystem, id: FileId) -> Result<BTreeMap<Bytes, Bytes>> {
    let mut xattrs = BTreeMap::new();
    for name in filesystem.xattr_names(id)? {
        let value = filesystem.xattr(id, &name)?;
        xattrs.insert(Bytes(name), Bytes(value));
    }
    Ok(xattrs)
}

fn node(filesystem: &Filesystem, id: FileId, xattrs: BTreeMap<Bytes, Bytes>) -> Result<Node> {
    let stat = filesystem.stat(id)?;
    let moment = |time: butternut::Time| Some(Moment { secs: time.secs, nanos: time.nanos });
    let kind = match stat.kind {
        FileKind::File => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::Fifo => Kind::Fifo,
        FileKind::CharDevice => Kind::Character,
        FileKind::BlockDevice => Kind::Block,
        FileKind::Socket => Kind::Socket,
    };
    Ok(Node {
        kind,
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        nlink: u64::from(stat.nlink),
        rdev: stat.rdev,
        content: Digest::default(),
        target: Bytes::default(),
        xattrs,
        flags: Some(filesystem.attribute_flags(id)?.0 & flags::ALL),
        atime: moment(stat.atime),
        mtime: moment(stat.mtime),
        twin: Bytes::default(),
        number: 0,
    })
}

fn contents(file: &File, size: u64) -> Result<Digest> {
    let block_bytes = BLOCK_BYTES as u64;
    let mut digest = Digest::default();
    let mut next = 0;
    while next < size {
        let (start, end) = if size <= WHOLE_BYTES_MAX {
            (next, size)
        } else {
            let Some(start) = file.seek_data(next)? else { break };
            let end = file.seek_hole(start)?.context("data without an end")?;
            (start, end)
        };
        ensure!(start >= next && end > start && end <= size, "data {start}..{end} of {size}");
        let mut block = (start / block_bytes).max(next.div_ceil(block_bytes));
        while block * block_bytes < end {
            let mut memory = [0; BLOCK_BYTES];
            let at = block * block_bytes;
            let want = usize::try_from(block_bytes.min(size - at)).expect("a block");
            let mut done = 0;
            while done < want {
                let transferred = file.read_at(at + done as u64, &mut memory[done..want])?;
                ensure!(transferred > 0, "ends at {}, before its size", at + done as u64);
                done += transferred;
            }
            digest.add(block, &memory[..want]);
            block += 1;
        }
        next = end;
    }
    Ok(digest)
}
