//! `mkfs --rootdir`: fills the new volume with the contents of a directory.
//!
//! 1. Without --size, the size of an image file is estimated: an upper bound of the space for the
//!    directory tree, plus a quarter, plus [`EXTRA_BYTES`]. The file is sparse, so unused space
//!    takes no space on the host; `--shrink` truncates it.
//! 2. With an epoch, the same tree gives the same bytes: one thread creates files in the order of
//!    their names, the periodic commit is off, and the clock always returns the epoch.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use butternut::format::inode::Time as Stamp;
use butternut::{Clock, DevicePath, Filesystem, MountOptions};
use butternut_mkfs::{BlockGroupFlags, Made, MadeGroup, MkfsOptions, Profile};

use super::super::import::{Counts, Rules, files_of, into_root};
use super::super::progress::Progress;
use crate::args::{GlobalArgs, ImportOptions, MkfsArgs};
use crate::failure::Failure;
use crate::volume;
use crate::volume::arg::VolumeArg;
use crate::volume::image_size;

/// Files up to this size are stored as inline extents.
const INLINE_BYTES_MAX: u64 = 2048;
const SECTOR_BYTES: u64 = 4096;
/// Metadata of a file besides its names and data: inode, references, directory entries, attributes.
const BYTES_PER_FILE: u64 = 500;
/// Metadata of an extent: two items and their leaf headers.
const BYTES_PER_EXTENT: u64 = 160;
/// Maximum length of an extent.
const EXTENT_BYTES_MAX: u64 = 4 << 20;
/// Extra size for the rounding of chunks, and for copy-on-write during commits.
const EXTRA_BYTES: u64 = 256 << 20;

/// The creation time of a reproducible volume, which its clock returns.
static EPOCH: OnceLock<Stamp> = OnceLock::new();

/// The estimated space of a directory tree, in bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Demand {
    data_bytes: u64,
    tree_bytes: u64,
}

/// Sets the size of an image file if the user gives none (law 1).
pub(super) fn choose_size(
    dir: &Path,
    device: &DevicePath,
    import_options: &ImportOptions,
    options: &mut MkfsOptions,
) -> Result<(), Failure> {
    if options.bytes.is_some() {
        return Ok(());
    }
    let len = match fs::metadata(&device.path) {
        Ok(meta) if meta.is_file() => meta.len(),
        // A block device has a size. Any other file type is refused when it is opened.
        Ok(_) => return Ok(()),
        Err(_) => 0,
    };
    let mut demand = Demand::default();
    let top = fs::metadata(dir).map_err(|error| failed(dir, &error))?;
    let only = import_options.one_file_system.then(|| top.dev());
    demand.add_tree(dir, options.csum.bytes() as u64, only)?;
    let wanted = demand.volume_bytes(options);
    options.bytes = Some(wanted.max(len.saturating_sub(device.offset)));
    Ok(())
}

/// Copies the directory tree into the volume, and updates the description of the volume.
pub(super) fn fill(
    global: &GlobalArgs,
    args: &MkfsArgs,
    dir: &Path,
    volume_arg: &VolumeArg,
    made: &mut Made,
) -> Result<Counts, Failure> {
    let epoch = super::epoch()?.map(|epoch| *EPOCH.get_or_init(|| epoch));
    let clock = if epoch.is_some() { Clock::new(epoch_time) } else { Clock::default() };
    let mount = MountOptions::default()
        .read_only(false)
        .commit_seconds(0)
        .commits_for_space(false)
        .clock(clock);
    let filesystem = volume::open(volume_arg, &mount)?;
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
        && device.path.is_file()
    {
        let end = device.offset.saturating_add(made.bytes);
        let cut = image_size::set(&device.path, &volume_files, end);
        cut.map_err(|error| failed(&device.path, &error))?;
    }
    result
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

impl Demand {
    fn add_tree(&mut self, dir: &Path, csum_bytes: u64, only: Option<u64>) -> Result<(), Failure> {
        let mut pending = vec![dir.to_path_buf()];
        while let Some(dir) = pending.pop() {
            let entries = fs::read_dir(&dir).map_err(|error| failed(&dir, &error))?;
            for entry in entries {
                let entry = entry.map_err(|error| failed(&dir, &error))?;
                let meta = match entry.metadata() {
                    Ok(meta) => meta,
                    Err(error) => return Err(failed(&entry.path(), &error)),
                };
                let is_other_filesystem = only.is_some_and(|device| device != meta.dev());
                let name_bytes = entry.file_name().len() as u64;
                self.tree_bytes += BYTES_PER_FILE + 3 * name_bytes;
                if meta.is_dir() && !is_other_filesystem {
                    pending.push(entry.path());
                } else if meta.is_file() {
                    self.add_file(meta.len(), meta.blocks().saturating_mul(512), csum_bytes);
                } else if meta.is_symlink() {
                    self.tree_bytes += meta.len();
                }
            }
        }
        Ok(())
    }

    /// Adds a file. A file that takes much less space than its size is sparse or compressed: its
    /// data is estimated as eight times the space that it takes.
    fn add_file(&mut self, size: u64, stored: u64, csum_bytes: u64) {
        if size <= INLINE_BYTES_MAX {
            self.tree_bytes += BYTES_PER_EXTENT + size;
            return;
        }
        let is_sparse = stored.saturating_mul(8) < size;
        let bytes = if is_sparse { size.min(stored.saturating_mul(8)) } else { size };
        let bytes = bytes.next_multiple_of(SECTOR_BYTES);
        self.data_bytes = self.data_bytes.saturating_add(bytes);
        let extents = bytes / EXTENT_BYTES_MAX + 1;
        self.tree_bytes += extents * BYTES_PER_EXTENT + bytes / SECTOR_BYTES * csum_bytes;
    }

    fn volume_bytes(self, options: &MkfsOptions) -> u64 {
        let copies = |profile: Option<Profile>, default| {
            if profile.unwrap_or(default) == Profile::Dup { 2 } else { 1 }
        };
        let mixed = options.features.is_mixed();
        let default = if mixed { Profile::Single } else { Profile::Dup };
        let data = self.data_bytes.saturating_mul(copies(options.data, Profile::Single));
        // Leaves are seldom full, and a commit writes new tree blocks before it frees the old ones.
        let trees =
            self.tree_bytes.saturating_mul(3).saturating_mul(copies(options.metadata, default));
        let both = data.saturating_add(trees);
        let bytes = both.saturating_add(both / 4).saturating_add(EXTRA_BYTES);
        bytes.next_multiple_of(1 << 20)
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::io(path.display().to_string(), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_files_take_little_space_and_small_files_only_metadata() {
        let of = |size, stored| {
            let mut demand = Demand::default();
            demand.add_file(size, stored, 4);
            demand
        };
        assert_eq!(of(2048, 4096), Demand { data_bytes: 0, tree_bytes: 2208 });
        assert_eq!(of(5000, 8192), Demand { data_bytes: 8192, tree_bytes: 168 });
        assert_eq!(of(1 << 40, 4096).data_bytes, 8 * 4096);
        let whole = of(1 << 30, 1 << 30);
        assert_eq!(whole.data_bytes, 1 << 30);
        assert!(whole.volume_bytes(&MkfsOptions::default()) > (1 << 30) + EXTRA_BYTES);
    }
}
