//! The operations whose costs are counted, each on a new volume in memory.
//!
//! An operation prepares its files and returns a call. The call gets a number, which is different
//! each time, and a meter, with which it counts the part of it that is measured. Everything is
//! committed between the preparation and the calls, and the first calls are not counted: they fill
//! caches.

mod data;
mod names;

use super::kept::Row;
use super::meter::Meter;
use anyhow::{Context, Result, ensure};
use butternut::{Clock, File, FileId, Filesystem, MountOptions, NewInode};
use butternut_device::{Device, MemoryDevice};
use butternut_format::inode::Time;
use butternut_mkfs::MkfsOptions;
use std::sync::Arc;

const VOLUME_BYTES: u64 = 1 << 30;
/// More than all files of an operation, so that nothing is written back for lack of memory.
const PAGE_CACHE_BYTES: u64 = 512 << 20;
/// Calls that are not counted.
const FIRST_CALLS: u32 = 4;
/// Bytes of the file that data operations work on.
const FILE_BYTES: u64 = 32 << 20;

/// The call of an operation.
type Call = Box<dyn FnMut(u32, &mut Meter) -> Result<()>>;

/// An operation.
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// How often it is called and counted.
    calls: u32,
    prepare: fn(&Volume) -> Result<Call>,
}

/// All operations, in the order of their names within each kind.
pub(super) const OPERATIONS: &[Operation] = &{
    const fn of(name: &'static str, calls: u32, prepare: fn(&Volume) -> Result<Call>) -> Operation {
        Operation { name, calls, prepare }
    }
    [
        of("open", 4, names::open),
        of("create", 64, names::create),
        of("create-fsync", 32, names::create_fsync),
        of("create-commit", 16, names::create_commit),
        of("mkdir", 64, names::mkdir),
        of("lookup-stat", 64, names::lookup_stat),
        of("list-200", 8, names::list),
        of("rename", 64, names::rename),
        of("link", 64, names::link),
        of("set-xattr", 64, names::set_xattr),
        of("unlink", 64, names::unlink),
        of("commit-clean", 8, names::commit_clean),
        of("snapshot", 8, names::snapshot),
        of("write-4k-buffered", 64, data::write_4k_buffered),
        of("write-1m-buffered", 8, data::write_1m_buffered),
        of("write-4k-buffered-fsync", 32, data::write_4k_buffered_fsync),
        of("write-1m-buffered-fsync", 8, data::write_1m_buffered_fsync),
        of("write-4k-uncached-fsync", 32, data::write_4k_uncached_fsync),
        of("write-1m-uncached-fsync", 8, data::write_1m_uncached_fsync),
        of("write-4k-direct", 64, data::write_4k_direct),
        of("write-1m-direct", 8, data::write_1m_direct),
        of("write-4k-direct-in-place", 64, data::write_4k_in_place),
        of("write-4k-queue", 64, data::write_4k_queue),
        of("write-4k-queue-in-place", 64, data::write_4k_queue_in_place),
        of("fsync-4k", 32, data::fsync_4k),
        of("clone-1m", 8, data::clone_1m),
        of("read-4k-warm", 64, data::read_4k_warm),
        of("read-1m-warm", 8, data::read_1m_warm),
        of("read-4k-cold", 8, data::read_4k_cold),
        of("read-1m-cold", 8, data::read_1m_cold),
        of("read-4k-direct", 64, data::read_4k_direct),
        of("read-1m-direct", 8, data::read_1m_direct),
        of("read-4k-queue", 64, data::read_4k_queue),
    ]
};

/// A volume in memory that is open for writing.
pub(super) struct Volume {
    device: Arc<MemoryDevice>,
    fs: Filesystem,
}

impl Volume {
    fn new() -> Result<Self> {
        let device = Arc::new(MemoryDevice::new("memory", VOLUME_BYTES));
        butternut_mkfs::make(&*device, &MkfsOptions::default())?;
        let fs = open(&device)?;
        Ok(Self { device, fs })
    }

    /// Makes an empty file in the top directory.
    fn file(&self, name: &str) -> Result<File> {
        let id = self.fs.create(self.fs.root(), name.as_bytes(), &NewInode::new(0o644))?;
        Ok(self.fs.open_file(id)?)
    }

    /// Makes a file of [`FILE_BYTES`] bytes.
    fn written(&self, name: &str) -> Result<File> {
        let file = self.file(name)?;
        fill(&file)?;
        Ok(file)
    }

    /// Makes a directory with files that are named by [`name`].
    fn directory(&self, files: u32) -> Result<FileId> {
        let directory = self.fs.mkdir(self.fs.root(), b"directory", &NewInode::new(0o755))?;
        for number in 0..files {
            self.fs.create(directory, &name(number), &NewInode::new(0o644))?;
        }
        Ok(directory)
    }
}

fn fill(file: &File) -> Result<()> {
    let bytes = vec![7; 1 << 20];
    for at in (0..FILE_BYTES).step_by(bytes.len()) {
        ensure!(file.write_at(at, &bytes)? == bytes.len(), "a short write");
    }
    Ok(())
}

fn name(number: u32) -> Vec<u8> {
    format!("file-{number:04}").into_bytes()
}

/// Opens the volume without commits in the background.
fn open(device: &Arc<MemoryDevice>) -> Result<Filesystem> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    let now = || Time { secs: 1_700_000_000, nanos: 7 };
    let options = MountOptions::default().read_only(false).commit_seconds(0);
    let options = options.page_cache_bytes(PAGE_CACHE_BYTES).clock(Clock::new(now));
    Ok(Filesystem::open_devices(devices, &options)?)
}

/// Opens the volume, as it is on the device, for reading. Nothing is cached.
fn open_to_read(device: &Arc<MemoryDevice>) -> Result<Filesystem, butternut::Error> {
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    Filesystem::open_devices(devices, &MountOptions::default())
}

/// Performs an operation on a new volume, and returns what its calls cost.
///
/// # Errors
/// A call fails, or counts another number of operations than one.
pub(super) fn perform(operation: &Operation) -> Result<Row> {
    let volume = Volume::new()?;
    let mut call = (operation.prepare)(&volume).context("preparation")?;
    volume.fs.sync()?;
    let mut meter = Meter::new(Arc::clone(&volume.device) as Arc<dyn Device>);
    for number in 0..FIRST_CALLS {
        call(number, &mut meter)?;
    }
    meter.reset();
    for number in FIRST_CALLS..FIRST_CALLS + operation.calls {
        call(number, &mut meter)?;
    }
    drop(call);
    let row = meter.row();
    ensure!(row.operations == u64::from(operation.calls), "counted {} calls", row.operations);
    volume.fs.close()?;
    Ok(row)
}
