//! Send streams in the place of a volume: a reading command shows what they would make.
//!
//! ```text
//! streams, in order -> receive -> volume on a temporary file -> opened read-only, for the command
//! ```
//!
//! 1. A regular file is a stream if it begins with the magic of one. Streams and devices are not
//!    mixed.
//! 2. Nothing is kept: the temporary file has no name, so it is gone when the process ends, however
//!    it ends.
//! 3. The streams are bounded: their data is in the temporary file, and not in memory, which holds
//!    one command besides the caches of a volume. The volume is never larger than the space that is
//!    free for the temporary file, so that a stream which decompresses to more ends with no space,
//!    nor than a file may be.
//! 4. The time is bounded, too: streams that seal far more than all of them have, or clone far more
//!    extents, are refused.
//! 5. The volume is opened for reading only, and commands that change a volume refuse a stream.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use butternut::device::{Alignment, Counters, Device, DeviceError, FileDevice, OpenDevice};
use butternut::receive::{
    EXTENTS_FIELD, HASHES_BYTES_FIELD, SEALED_BYTES_FIELD, StreamEnd, StreamLimits, StreamReader,
};
use butternut::{DevicePath, Error, Filesystem, MountOptions, Subvolume};
use butternut_format::stream::STREAM_MAGIC;
use butternut_mkfs::MkfsOptions;

use super::arg::VolumeArg;
use crate::failure::{Failure, chain};

/// Maximum size of the volume in bytes. The file is sparse.
const VOLUME_BYTES_MAX: u64 = 4 << 40;

/// The volume gets at most nine tenths of the space that is free: programs beside it need some.
const TENTHS: u64 = 9;

/// Minimum size of the volume in bytes: where no larger file can be made, none is.
const VOLUME_BYTES_MIN: u64 = 128 << 20;

/// Size of the buffer for a stream in bytes.
const INPUT_BYTES: usize = 256 << 10;

/// Where the temporary file is, unless `TMPDIR` names another directory: it may be large, and
/// `/tmp` is memory on many systems.
const TEMPORARY: &str = "/var/tmp";

/// Returns whether a volume argument names send streams.
///
/// # Errors
/// Fails if it names a stream, and something else besides.
pub(crate) fn is_named(arg: &VolumeArg) -> Result<bool, Failure> {
    let (streams, others): (Vec<_>, Vec<_>) = arg.devices.iter().partition(|it| is_stream(it));
    match others.first() {
        Some(other) if !streams.is_empty() => {
            let what = other.path.display().to_string();
            Err(Failure::new(what, "is not a send stream, and others are")
                .hint("name only streams, or only the devices of a volume"))
        }
        Some(_) => Ok(false),
        None => Ok(!streams.is_empty()),
    }
}

/// Returns whether a file begins with the magic of a send stream. One that cannot be read does not.
pub(super) fn is_stream(device: &DevicePath) -> bool {
    let begins = |device: &DevicePath| -> std::io::Result<bool> {
        // A pipe would lose its first bytes.
        if !std::fs::metadata(&device.path)?.is_file() {
            return Ok(false);
        }
        let mut magic = [0; STREAM_MAGIC.len()];
        open(device)?.read_exact(&mut magic)?;
        Ok(magic == STREAM_MAGIC)
    };
    begins(device).unwrap_or(false)
}

fn open(device: &DevicePath) -> std::io::Result<File> {
    let mut file = File::open(&device.path)?;
    file.seek(SeekFrom::Start(device.offset))?;
    Ok(file)
}

/// Returns the failure of a command that needs a volume, and that was given a stream.
pub(crate) fn refused(arg: &VolumeArg) -> Failure {
    Failure::new(arg.typed.clone(), "is a send stream, which can only be read")
        .hint("`butternut receive` makes its subvolumes in a volume")
}

/// As [`refused`], by a command that needs the structures of a volume.
pub(crate) fn not_checked(shown: &str) -> Failure {
    Failure::new(shown, "is a send stream, which cannot be checked")
        .hint("`butternut receive` makes its subvolumes in a volume, which can")
}

/// Opens the volume that the streams make, for reading. `options` are those of the command.
///
/// # Errors
/// Fails if a stream is damaged or cannot be applied, as an increment whose parent no stream
/// before it makes; if there is no space for the temporary file; if the subvolume of `options` does
/// not exist.
pub(crate) fn filesystem(arg: &VolumeArg, options: &MountOptions) -> Result<Filesystem, Failure> {
    let device: Arc<dyn Device> = Arc::new(TemporaryDevice::new()?);
    let failed = |why: &dyn std::error::Error| {
        Failure::new(arg.typed.clone(), format!("the temporary volume: {}", chain(why)))
    };
    let made = butternut_mkfs::make(&*device, &MkfsOptions::default());
    made.map_err(|error| failed(&error))?;
    let devices = || vec![Arc::clone(&device)];
    let writing = options.clone().subvolume(Subvolume::Default).read_only(false).commit_seconds(0);
    let receiver = Filesystem::open_devices(devices(), &writing).map_err(|error| failed(&error))?;
    let limits = StreamLimits::default();
    for stream in &arg.devices {
        if let Err(failure) = receive(&receiver, stream, &limits) {
            receiver.abandon();
            return Err(failure);
        }
    }
    receiver.close().map_err(|error| failed(&error))?;
    let reading = options.clone().read_only(true);
    Filesystem::open_devices(devices(), &reading)
        .map_err(|error| Failure::of(arg.typed.clone(), &error))
}

/// Receives one file, which may have several streams.
fn receive(
    filesystem: &Filesystem,
    stream: &DevicePath,
    limits: &StreamLimits,
) -> Result<(), Failure> {
    let name = stream.path.display().to_string();
    let input = open(stream).map_err(|error| Failure::io(name.clone(), &error))?;
    let input = BufReader::with_capacity(INPUT_BYTES, input);
    let mut reader = StreamReader::new(input).limit_work(limits);
    let received = filesystem.receive(filesystem.root(), &mut reader, StreamEnd::Input);
    received.map(drop).map_err(|error| {
        let failure = Failure::of(name, &error);
        failure.hint_if(hint(&error))
    })
}

/// Returns what the user can do, where that is something else than for a volume.
fn hint(error: &Error) -> Option<&'static str> {
    let Error::Receive { source, .. } = error else { return None };
    if matches!(&**source, Error::Stream(refused) if refused.field() == "CLONE_UUID") {
        return Some("name the stream of that subvolume before this one, as FIRST,SECOND");
    }
    let fields = [SEALED_BYTES_FIELD, HASHES_BYTES_FIELD];
    if matches!(&**source, Error::Stream(refused) if fields.contains(&refused.field())) {
        return Some("`butternut receive` seals files of any size in a volume");
    }
    if matches!(&**source, Error::Stream(refused) if refused.field() == EXTENTS_FIELD) {
        return Some("`butternut receive` clones and frees any number of extents in a volume");
    }
    if matches!(**source, Error::Exists) {
        return Some("name only streams that make different names");
    }
    (source.errno() == rustix::io::Errno::NOSPC.raw_os_error())
        .then_some("set TMPDIR to a directory with more free space")
}

/// A sparse file without a name. Nothing is flushed, because nothing is kept.
#[derive(Debug)]
struct TemporaryDevice {
    file: FileDevice,
    name: Box<str>,
}

impl TemporaryDevice {
    fn new() -> Result<Self, Failure> {
        let dir = std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
        let dir = dir.map_or_else(|| PathBuf::from(TEMPORARY), PathBuf::from);
        let shown = dir.display().to_string();
        let failed = |why: &std::io::Error| {
            Failure::io(shown.clone(), why)
                .hint("set TMPDIR to a directory for the contents of the streams")
        };
        let file = tempfile::tempfile_in(&dir).map_err(|error| failed(&error))?;
        let space = rustix::fs::fstatvfs(&file).map_err(|errno| failed(&errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let bytes = VOLUME_BYTES_MAX.min(free / 10 * TENTHS);
        set_size(&file, bytes).map_err(|error| failed(&error))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let how = OpenDevice { writable: true, direct: false, ..OpenDevice::default() };
        let opened = FileDevice::open(Path::new(&path), &how);
        let opened = opened.map_err(|error| Failure::new(shown.clone(), chain(&error)))?;
        Ok(Self { file: opened, name: format!("temporary file in {shown}").into() })
    }
}

/// Sets the size of a sparse file to `bytes`, or to less where the limit of the process or of the
/// filesystem is lower.
fn set_size(file: &File, bytes: u64) -> std::io::Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let mut bytes = limit.map_or(bytes, |limit| bytes.min(limit));
    loop {
        match file.set_len(bytes) {
            Err(error)
                if error.kind() == std::io::ErrorKind::FileTooLarge
                    && bytes / 2 >= VOLUME_BYTES_MIN =>
            {
                bytes /= 2;
            }
            set => return set,
        }
    }
}

impl Device for TemporaryDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn alignment(&self) -> Alignment {
        self.file.alignment()
    }

    fn read_at(&self, offset: u64, memory: &mut [u8]) -> Result<(), DeviceError> {
        self.file.read_at(offset, memory)
    }

    fn write_at(&self, offset: u64, memory: &[u8]) -> Result<(), DeviceError> {
        self.file.write_at(offset, memory)
    }

    fn write_vectored_at(&self, offset: u64, slices: &[&[u8]]) -> Result<(), DeviceError> {
        self.file.write_vectored_at(offset, slices)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.file.counters().count_flush();
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.file.discard(offset, bytes)
    }

    fn counters(&self) -> &Counters {
        self.file.counters()
    }
}
