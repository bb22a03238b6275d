//! The library's view of a volume as a manifest, to compare with the kernel's.
//!
//! It uses the public API only. Its reads differ in size and alignment from those of
//! [`crate::walk`], so equal hashes come from different reads.

use crate::image::{Image, View, Which};
use crate::manifest::{
    Bytes, Entry, Kind, Manifest, Moment, PIECE_BYTES, Piece, hash, pieces_to_read,
};
use crate::walk::joined;
use anyhow::{Context, Result, ensure};
use butternut::{
    DevicePath, File, FileId, FileKind, Filesystem, MountOptions, Stat, Subvolume, Time,
};
use butternut_check::CheckOptions;
use std::collections::BTreeMap;
use std::path::Path;

/// Pairs of a `BTRFS_INODE_*` bit and the bit that `lsattr` shows.
const FLAGS: [(u64, u32); 9] = [
    (1 << 1, 0x0080_0000),  // nodatacow -> C
    (1 << 3, 0x0000_0400),  // nocompress -> m
    (1 << 5, 0x0000_0008),  // sync -> S
    (1 << 6, 0x0000_0010),  // immutable -> i
    (1 << 7, 0x0000_0020),  // append -> a
    (1 << 8, 0x0000_0040),  // nodump -> d
    (1 << 9, 0x0000_0080),  // noatime -> A
    (1 << 10, 0x0001_0000), // dirsync -> D
    (1 << 11, 0x0000_0004), // compress -> c
];

/// The size of the first read of a piece in bytes. It is odd, so that the second read is unaligned.
const FIRST_READ_BYTES: usize = 77_777;

/// Opens the image for the view.
pub fn open(image: &Image, view: &View) -> Result<Filesystem> {
    let devices: Vec<DevicePath> = image
        .paths_of(view)
        .into_iter()
        .map(|path| DevicePath { path, offset: image.offset, bytes: None })
        .collect();
    Filesystem::open(&devices, &options(view)).context("opening with the library")
}

pub fn options(view: &View) -> MountOptions {
    MountOptions::default().degraded(!view.missing.is_empty()).subvolume(match &view.subvolume {
        Which::Default => Subvolume::Default,
        Which::Id(id) => Subvolume::Id(*id),
        Which::Path(path) => Subvolume::Path(path.clone().into_bytes()),
    })
}

/// Checks an image with all its data, which must have no damage. What `mkfs.btrfs` leaves in the
/// free space tree is none.
pub fn check(path: &Path) -> Result<()> {
    let device = butternut_check::open_device(path, 0, None, false)?;
    let options = CheckOptions { check_data_csum: true, ..CheckOptions::default() };
    let mut report = butternut_check::check(vec![device], &options)?;
    report.findings.retain(|found| found.kind != butternut_check::Kind::FreeSpaceNoGroup);
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    ensure!(findings.is_empty(), "{}: {}", path.display(), findings.join("\n"));
    Ok(())
}

/// Returns the manifest of everything below the root that the filesystem was opened with.
pub fn walk(filesystem: &Filesystem) -> Result<Manifest> {
    let mut walker = Walker { filesystem, entries: Vec::new() };
    walker.visit(filesystem.root(), &Bytes::default(), 0)?;
    Ok(Manifest::from_identified(walker.entries))
}

struct Walker<'a> {
    filesystem: &'a Filesystem,
    entries: Vec<(Entry, (u64, u64))>,
}

impl Walker<'_> {
    fn visit(&mut self, id: FileId, path: &Bytes, order: u32) -> Result<()> {
        let entry =
            self.entry(id, path.clone(), order).with_context(|| format!("reading {path}"))?;
        let is_directory = entry.kind == Kind::Directory;
        self.entries.push((entry, (0, id.as_u64())));
        if !is_directory {
            return Ok(());
        }
        let listing = self.filesystem.read_dir(id, butternut::FIRST_ENTRY);
        for (order, child) in listing.with_context(|| format!("listing {path}"))?.enumerate() {
            let child = child.with_context(|| format!("listing {path}"))?;
            let below = joined(path, &child.name);
            let found = self.filesystem.lookup(id, &child.name);
            let found = found.with_context(|| format!("looking {below} up"))?;
            ensure!(found == child.id, "{below}: listed as {:?}, found as {found:?}", child.id);
            self.visit(child.id, &below, u32::try_from(order)?)?;
        }
        Ok(())
    }

    fn entry(&self, id: FileId, path: Bytes, order: u32) -> Result<Entry> {
        let stat = self.filesystem.stat(id).context("stat")?;
        let mut entry = from_stat(&stat, path, order);
        entry.xattrs = self.xattrs(id)?;
        match entry.kind {
            Kind::Symlink => entry.target = Some(Bytes(self.filesystem.read_link(id)?)),
            Kind::File => {
                entry.flags = Some(flags(stat.flags));
                contents(&self.filesystem.open_file(id).context("open")?, &mut entry)?;
            }
            Kind::Directory => entry.flags = Some(flags(stat.flags)),
            Kind::Character | Kind::Block | Kind::Fifo | Kind::Socket | Kind::Unknown => {}
        }
        Ok(entry)
    }

    fn xattrs(&self, id: FileId) -> Result<BTreeMap<Bytes, Bytes>> {
        let names = self.filesystem.xattr_names(id).context("xattr names")?;
        let value = |name: Vec<u8>| -> Result<(Bytes, Bytes)> {
            let value = self.filesystem.xattr(id, &name);
            let value = value.with_context(|| format!("xattr {}", Bytes(name.clone())))?;
            Ok((Bytes(name), Bytes(value)))
        };
        names.into_iter().map(value).collect()
    }
}

fn from_stat(stat: &Stat, path: Bytes, order: u32) -> Entry {
    let moment = |time: Time| Moment { secs: time.secs, nanos: time.nanos };
    Entry {
        path,
        kind: kind(stat.kind),
        mode: stat.mode & 0o7777,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        nlink: u64::from(stat.nlink),
        rdev: stat.rdev,
        atime: moment(stat.atime),
        mtime: moment(stat.mtime),
        ctime: moment(stat.ctime),
        btime: Some(moment(stat.btime)),
        ino: stat.ino,
        twin: Bytes::default(),
        blocks: stat.blocks,
        order,
        target: None,
        xattrs: BTreeMap::new(),
        flags: None,
        pieces: Vec::new(),
        data: Vec::new(),
    }
}

fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::File => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::CharDevice => Kind::Character,
        FileKind::BlockDevice => Kind::Block,
        FileKind::Fifo => Kind::Fifo,
        FileKind::Socket => Kind::Socket,
    }
}

fn flags(btrfs: u64) -> u32 {
    FLAGS.iter().filter(|(bit, _)| btrfs & bit != 0).fold(0, |all, (_, flag)| all | flag)
}

fn contents(file: &File, entry: &mut Entry) -> Result<()> {
    let mut at = 0;
    while let Some(start) = file.seek_data(at).context("seek_data")? {
        let end = file.seek_hole(start).context("seek_hole")?.context("data without an end")?;
        ensure!(start >= at && end > start, "data {start}..{end} found from {at}");
        entry.data.push((start, end));
        at = end;
    }
    let mut buf = vec![0; usize::try_from(PIECE_BYTES)?];
    for offset in pieces_to_read(entry.size, &entry.data) {
        let want = usize::try_from(PIECE_BYTES.min(entry.size - offset))?;
        entry.pieces.push((offset, read_piece(file, offset, &mut buf[..want])?));
    }
    let past = file.read_at(entry.size, &mut buf[..1]).context("reading at the end")?;
    ensure!(past == 0, "a read at the end of the file returned {past} bytes");
    Ok(())
}

/// Reads one piece in two reads, and returns its hash or the error number.
fn read_piece(file: &File, offset: u64, buf: &mut [u8]) -> Result<Piece> {
    let mut done = 0;
    while done < buf.len() {
        let until =
            if done < FIRST_READ_BYTES { buf.len().min(FIRST_READ_BYTES) } else { buf.len() };
        match file.read_at(offset + u64::try_from(done)?, &mut buf[done..until]) {
            Ok(0) => anyhow::bail!("the file ends at {offset}, before its size"),
            Ok(bytes) => done += bytes,
            Err(error) => return Ok(Piece::Errno(error.errno())),
        }
    }
    Ok(Piece::Hash(hash(buf)))
}
