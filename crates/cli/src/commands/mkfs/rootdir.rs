//! `mkfs --rootdir`: fills the new volume with the contents of a directory.
//!
//! 1. Without --size, the size of an image file is estimated: an upper bound of the space for the
//!    directory tree, plus a quarter, plus [`EXTRA_BYTES`]. The file is sparse, so unused space
//!    takes no space on the host; `--shrink` truncates it, if nothing is behind the volume. A
//!    partition has the size that its table says, so its file stays as it is.
//! 2. The superblocks are written last: until then the device has no volume, so that an
//!    interruption leaves none that is incomplete. From then on it has the whole volume, also if
//!    its file cannot be truncated.
//! 3. With an epoch, the same tree gives the same bytes: one thread creates files in the order of
//!    their names, the periodic commit is off, and the clock always returns the epoch.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use butternut::device::Device;
use butternut::format::inode::Time as Stamp;
use butternut::{Clock, DevicePath, Filesystem, MountOptions};
use butternut_mkfs::{BlockGroupFlags, Made, MadeGroup, MkfsOptions, Profile, Unfinished};

use super::super::import::demand::Demand;
use super::super::import::{Counts, Rules, files_of, into_root};
use super::super::progress::Progress;
use crate::args::{GlobalArgs, ImportOptions, MkfsArgs};
use crate::failure::Failure;
use crate::volume;
use crate::volume::arg::VolumeArg;
use crate::volume::image_size;

/// Extra size for the rounding of chunks, and for copy-on-write during commits.
const EXTRA_BYTES: u64 = 256 << 20;
const SECTOR_BYTES: u64 = 4096;

/// The creation time of a reproducible volume, which its clock returns.
static EPOCH: OnceLock<Stamp> = OnceLock::new();

/// Sets the size of an image file if the user gives none (law 1).
pub(super) fn choose_size(
    dir: &Path,
    device: &DevicePath,
    import_options: &ImportOptions,
    options: &mut MkfsOptions,
) -> Result<(), Failure> {
    // A partition has a size, too.
    if options.bytes.is_some() || device.bytes.is_some() {
        return Ok(());
    }
    let len = match fs::metadata(&device.path) {
        Ok(meta) if meta.is_file() => meta.len(),
        // A block device has a size. Any other file type is refused when it is opened.
        Ok(_) => return Ok(()),
        Err(_) => 0,
    };
    let csum_bytes = options.csum.bytes() as u64;
    let demand = Demand::of(dir, csum_bytes, import_options.one_file_system);
    let demand = demand.map_err(|(path, error)| failed(&path, &error))?;
    let wanted = volume_bytes(demand, options);
    options.bytes = Some(wanted.max(len.saturating_sub(device.offset)));
    Ok(())
}

/// Why a volume was not filled, or its file not truncated.
pub(super) struct NotFilled {
    pub(super) failure: Failure,
    /// The device has the whole volume (law 2).
    pub(super) has_volume: bool,
}

/// Copies the directory tree into the volume, and updates the description of the volume.
pub(super) fn fill(
    global: &GlobalArgs,
    args: &MkfsArgs,
    dir: &Path,
    volume_arg: &VolumeArg,
    (made, device): (&mut Made, Unfinished),
) -> Result<Counts, NotFilled> {
    let device = Arc::new(device);
    let filled = fill_device(global, args, dir, volume_arg, (made, &device));
    filled.map_err(|failure| NotFilled { failure, has_volume: device.is_finished() })
}

fn fill_device(
    global: &GlobalArgs,
    args: &MkfsArgs,
    dir: &Path,
    volume_arg: &VolumeArg,
    (made, device): (&mut Made, &Arc<Unfinished>),
) -> Result<Counts, Failure> {
    let epoch = super::epoch()?.map(|epoch| *EPOCH.get_or_init(|| epoch));
    let clock = if epoch.is_some() { Clock::new(epoch_time) } else { Clock::default() };
    let mount = MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .commits_for_space(false)
        .clock(clock);
    let devices = vec![Arc::clone(device) as Arc<dyn Device>];
    let filesystem = Filesystem::open_devices(devices, &mount)
        .map_err(|error| volume::not_opened(volume_arg, &mount, &error))?;
    let bytes_before = made.bytes;
    let rules = Rules {
        no_owner: args.import_options.no_owner,
        epoch: epoch.map(|epoch| butternut::Time { secs: epoch.secs, nanos: epoch.nanos }),
    };
    let progress = Progress::new(global);
    let volume_files = files_of(&volume_arg.devices);
    let copied = into_root(&filesystem, dir, &args.import_options, rules, &progress, &volume_files);
    progress.finish();
    let mut finish = |counts| -> butternut::Result<Counts> {
        filesystem.sync()?;
        if args.shrink {
            shrink(&filesystem, made)?;
        }
        update(&filesystem, made)?;
        device.finish()?;
        Ok(counts)
    };
    let result = copied.and_then(|counts| {
        finish(counts).map_err(|error| Failure::of(volume_arg.typed.clone(), &error))
    });
    if result.is_err() {
        filesystem.abandon();
    }
    // The open volume locks the file: another process cannot have grown the volume again.
    if let (true, Ok(_), [device]) = (args.shrink, &result, volume_arg.devices.as_slice())
        && device.bytes.is_none()
    {
        truncate(device, bytes_before, &volume_files, made.bytes).map_err(|error| {
            failed(&device.path, &error)
                .hint("the volume is complete, but its file was not truncated")
        })?;
    }
    result
}

/// Truncates the image file of a volume that was made smaller, if nothing is behind the volume.
fn truncate(
    device: &DevicePath,
    bytes_before: u64,
    files: &[image_size::Identity],
    bytes: u64,
) -> std::io::Result<()> {
    if ends_file(device, bytes_before)? {
        image_size::set(&device.path, files, device.offset.saturating_add(bytes))?;
    }
    Ok(())
}

/// Returns whether a volume of this size reaches the end of its image file: what is behind it does
/// not belong to it.
fn ends_file(device: &DevicePath, bytes: u64) -> std::io::Result<bool> {
    let found = fs::metadata(&device.path)?;
    let end = device.offset.saturating_add(bytes);
    Ok(found.is_file() && found.len() < end.saturating_add(SECTOR_BYTES))
}

fn epoch_time() -> Stamp {
    EPOCH.get().copied().unwrap_or_default()
}

fn shrink(filesystem: &Filesystem, made: &mut Made) -> butternut::Result<()> {
    for device in filesystem.devices() {
        let bytes = filesystem.size_min(device.id)?;
        if bytes < device.total_bytes {
            filesystem.resize(device.id, bytes)?;
            filesystem.sync()?;
            made.bytes = bytes;
        }
    }
    Ok(())
}

/// Updates the description of the volume.
fn update(filesystem: &Filesystem, made: &mut Made) -> butternut::Result<()> {
    let groups = filesystem.usage()?.groups;
    made.bytes_used = groups.iter().map(|group| group.used_bytes).sum();
    let group = |group: &butternut::GroupUsage| {
        let flags = BlockGroupFlags(group.flags);
        let is_dup = flags.contains(BlockGroupFlags::DUP);
        let profile = if is_dup { Profile::Dup } else { Profile::Single };
        MadeGroup { flags, profile, bytes: group.total_bytes }
    };
    made.groups = groups.iter().map(group).collect();
    Ok(())
}

/// Returns a size that suffices for a directory tree (law 1).
fn volume_bytes(demand: Demand, options: &MkfsOptions) -> u64 {
    let copies = |profile: Option<Profile>, default| {
        if profile.unwrap_or(default) == Profile::Dup { 2 } else { 1 }
    };
    let default = if options.features.is_mixed() { Profile::Single } else { Profile::Dup };
    let data_copies = copies(options.data, Profile::Single);
    let both = demand.device_bytes(data_copies, copies(options.metadata, default));
    let bytes = both.saturating_add(both / 4).saturating_add(EXTRA_BYTES);
    bytes.next_multiple_of(1 << 20)
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::io(path.display().to_string(), error)
}
