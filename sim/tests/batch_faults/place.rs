//! A volume with files on a device that fails.

use crate::witness::Witness;
use anyhow::{Context, Result, ensure};
use butternut::format::chunk::BlockGroupFlags;
use butternut::queue::{Completion, Queue, QueueOptions};
use butternut::{AttributeFlags, Buffer, ExtentKind, File, Filesystem, MountOptions, NewInode};
use butternut_device::{Device, FaultyDevice};
use butternut_mkfs::{MkfsOptions, Profile};
use butternut_sim::content::pattern;
use butternut_sim::operation::flags;
use butternut_sim::volume::{check, fresh};
use std::ops::Range;
use std::sync::Arc;

pub(crate) const BLOCK: usize = 4096;
/// Blocks of each file.
pub(crate) const BLOCKS: usize = 64;
/// The number of files. The last one is nodatacow and nodatasum.
pub(crate) const FILES: usize = 3;
pub(crate) const IN_PLACE: usize = 2;
const VOLUME_BYTES: u64 = 256 << 20;
const ARENA_BYTES: usize = 1 << 20;
/// The commit interval in seconds: commits happen only on request.
const COMMIT_SECONDS: u32 = 1 << 30;

pub(crate) struct Place {
    pub(crate) medium: Arc<dyn Device>,
    pub(crate) witness: Arc<Witness>,
    /// The ranges of the device that hold data: each copy of the data chunk.
    pub(crate) copies: Vec<Range<u64>>,
    pub(crate) filesystem: Filesystem,
    pub(crate) files: Vec<File>,
    /// The expected content of the files.
    pub(crate) bytes: Vec<Vec<u8>>,
    /// Free blocks before the files were created.
    free: u64,
}

/// Returns the address of the only data chunk, and its ranges of the device.
fn data_chunk(filesystem: &Filesystem) -> Result<(u64, Vec<Range<u64>>)> {
    let chunks = filesystem.inspect().chunks();
    let chunk = chunks.iter().find(|chunk| chunk.flags.contains(BlockGroupFlags::DATA));
    let chunk = chunk.context("a chunk for data")?;
    let copies = chunk.stripes.iter().map(|(_, at)| *at..*at + chunk.bytes).collect();
    Ok((chunk.logical.0, copies))
}

impl Place {
    pub(crate) fn new(seed: u64, data: Option<Profile>) -> Result<Place> {
        let medium = fresh(VOLUME_BYTES, &MkfsOptions { data, ..MkfsOptions::default() })?;
        let copies = {
            let devices = vec![Arc::clone(&medium)];
            data_chunk(&Filesystem::open_devices(devices, &MountOptions::default())?)?.1
        };
        let faulty = Arc::new(FaultyDevice::new(Arc::clone(&medium), seed));
        let witness = Arc::new(Witness::new(faulty, copies[0].clone()));
        let options =
            MountOptions::default().read_only(false).commit_seconds(COMMIT_SECONDS).workers(1);
        let device: Arc<dyn Device> = Arc::<Witness>::clone(&witness);
        let filesystem = Filesystem::open_devices(vec![device], &options)?;
        filesystem.sync()?;
        let free = filesystem.statfs()?.blocks_free;
        let (mut files, mut bytes) = (Vec::new(), Vec::new());
        for number in 0..FILES {
            let name = name(number);
            let id = filesystem.create(filesystem.root(), &name, &NewInode::new(0o644))?;
            if number == IN_PLACE {
                filesystem.set_attribute_flags(id, AttributeFlags(flags::NO_COW))?;
            }
            let file = filesystem.open_file(id)?;
            let content = pattern(1 + 2 * number as u64, BLOCKS * BLOCK);
            ensure!(file.write_at(0, &content)? == content.len(), "a short write");
            file.sync_all()?;
            files.push(file);
            bytes.push(content);
        }
        filesystem.sync()?;
        Ok(Place { medium, witness, copies, filesystem, files, bytes, free })
    }

    pub(crate) fn queue(&self) -> Result<Queue> {
        let options = QueueOptions::default().arena_bytes(ARENA_BYTES);
        Ok(self.filesystem.queue(&options)?)
    }

    /// Returns the offset on the device of a block of a file, in the first copy.
    pub(crate) fn device_offset(&self, file: usize, block: usize) -> Result<u64> {
        let at = (block * BLOCK) as u64;
        let extent =
            self.files[file].extents(at..at + BLOCK as u64).next().context("an extent")??;
        let ExtentKind::Regular { logical, extent_offset, .. } = extent.kind else {
            anyhow::bail!("block {block} of file {file} is {extent:?}")
        };
        let (chunk, copies) = data_chunk(&self.filesystem)?;
        let inside = logical + extent_offset + (at - extent.offset) - chunk;
        Ok(copies[0].start + inside)
    }

    /// Returns the content of a file, which must be readable.
    pub(crate) fn have(&self, file: usize) -> Result<Vec<u8>> {
        let mut have = vec![0; BLOCKS * BLOCK];
        let transferred = self.files[file].read_at(0, &mut have)?;
        ensure!(transferred == have.len(), "file {file}: only {transferred} bytes can be read");
        Ok(have)
    }

    /// Checks that the checker finds nothing, that the files have their expected content, and that
    /// removing them frees all space.
    pub(crate) fn end(self) -> Result<()> {
        let Place { medium, filesystem, files, bytes, free, .. } = self;
        drop(files);
        filesystem.sync()?;
        check(&medium)?;
        let devices = vec![Arc::clone(&medium)];
        let again = Filesystem::open_devices(devices, &MountOptions::default())?;
        for (number, bytes) in bytes.iter().enumerate() {
            let file = again.open_file(again.lookup(again.root(), &name(number))?)?;
            let mut have = vec![0; bytes.len()];
            ensure!(file.read_at(0, &mut have)? == have.len(), "file {number} is cut");
            ensure!(have == *bytes, "file {number} is not what it was");
        }
        drop(again);
        for number in 0..FILES {
            filesystem.unlink(filesystem.root(), &name(number))?;
        }
        filesystem.sync()?;
        filesystem.sync()?;
        let now = filesystem.statfs()?.blocks_free;
        ensure!(now == free, "{} blocks are lost", free.abs_diff(now));
        filesystem.close()?;
        check(&medium)
    }
}

fn name(number: usize) -> Vec<u8> {
    format!("file {number}").into_bytes()
}

/// Reaps everything. Each request must complete once, with its buffer.
pub(crate) fn reap(queue: &mut Queue, count: usize) -> Result<Vec<Completion>> {
    let mut done = Vec::new();
    while queue.outstanding() > 0 {
        queue.reap(1, None, &mut done);
    }
    done.sort_by_key(|done| done.tag);
    ensure!(done.len() == count, "{} of {count} requests completed", done.len());
    let tags = done.iter().map(|done| done.tag);
    ensure!(tags.eq(0..count as u64), "a request did not complete exactly once");
    Ok(done)
}

/// Returns the number of free large buffers of a queue.
pub(crate) fn buffers(queue: &Queue) -> usize {
    let mut all: Vec<Buffer> = Vec::new();
    while let Some(buffer) = queue.buffer(64 << 10) {
        all.push(buffer);
    }
    all.len()
}
