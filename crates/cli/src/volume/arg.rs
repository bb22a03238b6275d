//! The VOLUME argument: the devices, the subvolume, and the place in a larger image.
//!
//! ```text
//! VOLUME = DEVICE [ "," DEVICE ]... [ "@" SUBVOL ]
//! DEVICE = PATH [ "?offset=" N | "?partition=" N ]
//! ```
//!
//! 1. Existing files take precedence: an argument that is the path of an existing file names that
//!    file, whatever characters the path contains. If an argument contains several `@`, it is split
//!    at the last one that leaves only existing files before it.
//! 2. A subvolume name of digits only is an id; `@/12` is the path `12`.
//! 3. `?offset=N` or `?partition=N` may also follow the subvolume, if the volume has one device.
//! 4. A partition is looked up here, so that every command sees its offset and its size. A file
//!    that does not exist is an error of the command.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use butternut::{DevicePath, Subvolume};

use super::partitions;
use crate::output::size;

/// The unit of an offset that ends with `s`, in bytes, as in sfdisk(8).
const SECTOR_BYTES: u64 = 512;

/// A device as named: where in the file the volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Offset(u64),
    Partition(u32),
}

/// A device and its place.
type Named = (PathBuf, Place);

/// The parts of a VOLUME argument, before partitions are looked up.
struct Parts {
    devices: Vec<Named>,
    subvolume: Subvolume,
    typed: String,
}

/// A parsed VOLUME argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeArg {
    pub(crate) devices: Vec<DevicePath>,
    pub(crate) subvolume: Subvolume,
    /// The argument as typed, for messages.
    pub(crate) typed: String,
}

impl VolumeArg {
    /// Returns the devices as they can be typed, for messages.
    pub(crate) fn without_subvolume(&self) -> String {
        let typed = |device: &DevicePath| match (device.offset, device.bytes) {
            (0, None) => device.path.display().to_string(),
            (offset, None) => format!("{}?offset={offset}", device.path.display()),
            (offset, Some(_)) => partitions::typed(&device.path, offset),
        };
        self.devices.iter().map(typed).collect::<Vec<_>>().join(",")
    }
}

/// Why a VOLUME argument is invalid, with a hint.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum VolumeArgError {
    #[error("the name of a device is empty (examples: disk.img, a.img,b.img, disk.img@snapshot)")]
    NoDevice,
    #[error("no subvolume after the @ (add a path or an id, or remove the @)")]
    NoSubvolume,
    #[error("offset {0:?} is not a number of bytes (examples: 1048576, 1M, 2048s for sectors)")]
    Offset(String),
    #[error("partition {0:?} is not a number (`butternut partitions` lists them)")]
    PartitionNumber(String),
    /// What is wrong with a partition, and what to do.
    #[error("{0}")]
    Partition(String),
    #[error("{0:?} after ? is not a setting (?offset=N and ?partition=N are accepted)")]
    Setting(String),
    #[error("two subvolumes are named, {0} and {1} (name only one)")]
    TwoSubvolumes(String, String),
    #[error(
        "offset after the subvolume of a volume on several devices (add ?offset=N to the device)"
    )]
    AmbiguousOffset,
}

/// Parses one or more arguments that together name one volume.
///
/// # Errors
/// Fails if an argument names no device, an invalid offset, a partition that cannot be used, or a
/// second subvolume.
pub(crate) fn parse(arguments: &[OsString]) -> Result<VolumeArg, VolumeArgError> {
    let Parts { devices, subvolume, typed } = parse_with(arguments, &|path| path.exists())?;
    let device = |(path, place): Named| match place {
        Place::Offset(offset) => Ok(DevicePath { path, offset, bytes: None }),
        Place::Partition(number) => {
            partitions::find(path, number).map_err(VolumeArgError::Partition)
        }
    };
    let devices = devices.into_iter().map(device).collect::<Result<_, _>>()?;
    Ok(VolumeArg { devices, subvolume, typed })
}

/// Parses the offset of a volume: a number of bytes, or of sectors of 512 bytes if `s` follows.
pub(crate) fn parse_offset(text: &str) -> Option<u64> {
    match text.strip_suffix(['s', 'S']) {
        Some(sectors) => sectors.parse::<u64>().ok()?.checked_mul(SECTOR_BYTES),
        None => size::parse(text),
    }
}

fn parse_with(
    arguments: &[OsString],
    exists: &dyn Fn(&Path) -> bool,
) -> Result<Parts, VolumeArgError> {
    let typed: Vec<String> =
        arguments.iter().map(|argument| argument.display().to_string()).collect();
    let mut volume =
        Parts { devices: Vec::new(), subvolume: Subvolume::Default, typed: typed.join(" ") };
    for argument in arguments {
        let (devices, subvolume) = parse_argument(argument.as_bytes(), exists)?;
        volume.devices.extend(devices);
        match (&volume.subvolume, subvolume) {
            (_, Subvolume::Default) => {}
            (Subvolume::Default, named) => volume.subvolume = named,
            (first, second) => {
                return Err(VolumeArgError::TwoSubvolumes(describe(first), describe(&second)));
            }
        }
    }
    Ok(volume)
}

/// Returns the name of a subvolume for messages.
pub(crate) fn describe(subvolume: &Subvolume) -> String {
    match subvolume {
        Subvolume::Default => "the default".to_owned(),
        Subvolume::Id(id) => id.to_string(),
        Subvolume::Path(path) => String::from_utf8_lossy(path).into_owned(),
    }
}

/// Parses the name of a subvolume: decimal digits are an id, anything else is a path.
pub(crate) fn subvolume(name: &[u8]) -> Subvolume {
    let id = std::str::from_utf8(name).ok().filter(|s| s.bytes().all(|b| b.is_ascii_digit()));
    match id.and_then(|digits| digits.parse().ok()) {
        Some(id) => Subvolume::Id(id),
        None => Subvolume::Path(name.to_vec()),
    }
}

/// Returns whether an argument begins with the path of an existing file that is not a directory,
/// and goes on as a VOLUME argument does: with a subvolume, a setting or another device.
pub(crate) fn begins_with_device(argument: &OsStr) -> bool {
    begins_with(argument.as_bytes(), &|path| path.metadata().is_ok_and(|found| !found.is_dir()))
}

fn begins_with(argument: &[u8], is_device: &dyn Fn(&Path) -> bool) -> bool {
    let cuts = (1..argument.len()).filter(|at| matches!(argument[*at], b'@' | b'?' | b','));
    cuts.map(|at| OsStr::from_bytes(&argument[..at])).any(|device| is_device(Path::new(device)))
}

fn parse_argument(
    argument: &[u8],
    exists: &dyn Fn(&Path) -> bool,
) -> Result<(Vec<Named>, Subvolume), VolumeArgError> {
    let whole = devices(argument, exists);
    let exist = |devices: &[Named]| devices.iter().all(|(path, _)| exists(path));
    if let Ok(devices) = &whole
        && exist(devices)
    {
        return Ok((devices.clone(), Subvolume::Default));
    }
    let splits: Vec<usize> = (0..argument.len()).rev().filter(|at| argument[*at] == b'@').collect();
    let all_exist =
        |cut: &usize| devices(&argument[..*cut], exists).is_ok_and(|devices| exist(&devices));
    // If no split leaves existing files, the last one gives the message that names the missing
    // file.
    let Some(cut) = splits.iter().find(|cut| all_exist(cut)).or(splits.first()).copied() else {
        return Ok((whole?, Subvolume::Default));
    };
    let mut devices = devices(&argument[..cut], exists)?;
    let (name, place) = setting(&argument[cut + 1..])?;
    if name.is_empty() {
        return Err(VolumeArgError::NoSubvolume);
    }
    if let Some(place) = place {
        let [device] = devices.as_mut_slice() else { return Err(VolumeArgError::AmbiguousOffset) };
        device.1 = place;
    }
    Ok((devices, subvolume(name)))
}

fn devices(argument: &[u8], exists: &dyn Fn(&Path) -> bool) -> Result<Vec<Named>, VolumeArgError> {
    let path = |bytes: &[u8]| Path::new(OsStr::from_bytes(bytes)).to_path_buf();
    if exists(&path(argument)) {
        return Ok(vec![(path(argument), Place::Offset(0))]);
    }
    let mut devices = Vec::new();
    for part in argument.split(|byte| *byte == b',') {
        let (name, place) = if exists(&path(part)) { (part, None) } else { setting(part)? };
        if name.is_empty() {
            return Err(VolumeArgError::NoDevice);
        }
        devices.push((path(name), place.unwrap_or(Place::Offset(0))));
    }
    Ok(devices)
}

/// Splits `?offset=N` or `?partition=N` off the end.
fn setting(argument: &[u8]) -> Result<(&[u8], Option<Place>), VolumeArgError> {
    let Some(at) = argument.iter().rposition(|byte| *byte == b'?') else {
        return Ok((argument, None));
    };
    let text = String::from_utf8_lossy(&argument[at + 1..]).into_owned();
    let place = match text.split_once('=') {
        Some(("offset", number)) => parse_offset(number)
            .map(Place::Offset)
            .ok_or_else(|| VolumeArgError::Offset(number.to_owned()))?,
        Some(("partition", number)) => number
            .parse()
            .map(Place::Partition)
            .map_err(|_| VolumeArgError::PartitionNumber(number.to_owned()))?,
        _ => return Err(VolumeArgError::Setting(text)),
    };
    Ok((&argument[..at], Some(place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        argument: &str,
        files: &[&str],
    ) -> Result<(Vec<(String, u64)>, Subvolume), VolumeArgError> {
        let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
        let volume = parse_with(&[argument.into()], &exists)?;
        // A partition is shown as a negative offset, which no argument has.
        let place = |place: &Place| match place {
            Place::Offset(offset) => *offset,
            Place::Partition(number) => u64::MAX - u64::from(*number),
        };
        let devices = volume.devices.iter();
        let devices = devices.map(|(path, at)| (path.display().to_string(), place(at))).collect();
        Ok((devices, volume.subvolume))
    }

    fn path(name: &str) -> Subvolume {
        Subvolume::Path(name.into())
    }

    fn one(name: &str, offset: u64) -> Vec<(String, u64)> {
        vec![(name.to_owned(), offset)]
    }

    #[test]
    fn a_plain_path_is_one_device() {
        assert_eq!(check("a.img", &["a.img"]), Ok((one("a.img", 0), Subvolume::Default)));
        assert_eq!(check("gone.img", &[]), Ok((one("gone.img", 0), Subvolume::Default)));
    }

    #[test]
    fn an_at_sign_separates_a_subvolume_path_or_id() {
        assert_eq!(check("a.img@snap1", &["a.img"]), Ok((one("a.img", 0), path("snap1"))));
        assert_eq!(check("a.img@257", &["a.img"]), Ok((one("a.img", 0), Subvolume::Id(257))));
        assert_eq!(check("a.img@/257", &["a.img"]), Ok((one("a.img", 0), path("/257"))));
        assert_eq!(check("a.img@x/y@z", &["a.img"]), Ok((one("a.img", 0), path("x/y@z"))));
        assert_eq!(check("a.img@", &["a.img"]), Err(VolumeArgError::NoSubvolume));
        assert_eq!(check("@x", &[]), Err(VolumeArgError::NoDevice));
    }

    #[test]
    fn an_existing_file_with_an_at_sign_takes_precedence() {
        let files = ["a.img", "a.img@snap1", "u@h/d.img"];
        let at = one("a.img@snap1", 0);
        assert_eq!(check("a.img@snap1", &files), Ok((at.clone(), Subvolume::Default)));
        assert_eq!(check("a.img@snap1@s", &files), Ok((at, path("s"))));
        assert_eq!(check("u@h/d.img@s", &files), Ok((one("u@h/d.img", 0), path("s"))));
    }

    #[test]
    fn offsets_accept_suffixes() {
        let files = ["a.img"];
        let at = |offset| Ok((one("a.img", offset), Subvolume::Default));
        assert_eq!(check("a.img?offset=1048576", &files), at(1 << 20));
        assert_eq!(check("a.img?offset=1M", &files), at(1 << 20));
        assert_eq!(check("a.img?offset=64k", &files), at(64 << 10));
        assert_eq!(check("a.img?offset=0x1000", &files), at(4096));
        assert_eq!(check("a.img?offset=2048s", &files), at(1 << 20));
        let sectors = "99999999999999999s";
        let too_many = Err(VolumeArgError::Offset(sectors.into()));
        assert_eq!(check(&format!("a.img?offset={sectors}"), &files), too_many);
        assert_eq!(check("a.img?offset=s", &files), Err(VolumeArgError::Offset("s".into())));
        let with_snapshot = Ok((one("a.img", 1 << 30), path("s")));
        assert_eq!(check("a.img?offset=1G@s", &files), with_snapshot);
        assert_eq!(check("a.img@s?offset=1G", &files), with_snapshot);
        assert_eq!(check("a.img?offset=x", &files), Err(VolumeArgError::Offset("x".into())));
        assert_eq!(check("a.img?size=1", &files), Err(VolumeArgError::Setting("size=1".into())));
    }

    #[test]
    fn partitions_are_named_by_number() {
        let at = |number: u64| one("a.img", u64::MAX - number);
        let files = ["a.img"];
        assert_eq!(check("a.img?partition=5", &files), Ok((at(5), Subvolume::Default)));
        assert_eq!(check("a.img?partition=1@s", &files), Ok((at(1), path("s"))));
        assert_eq!(check("a.img@s?partition=1", &files), Ok((at(1), path("s"))));
        for number in ["", "x", "-1", "1s", "4294967296"] {
            let refused = Err(VolumeArgError::PartitionNumber(number.into()));
            assert_eq!(check(&format!("a.img?partition={number}"), &files), refused);
        }
    }

    #[test]
    fn commas_separate_devices_with_their_own_offsets() {
        let files = ["a", "b", "c,d"];
        let two = vec![("a".to_owned(), 0), ("b".to_owned(), 4096)];
        assert_eq!(check("a,b?offset=4K@s", &files), Ok((two, path("s"))));
        assert_eq!(check("c,d", &files), Ok((one("c,d", 0), Subvolume::Default)));
        assert_eq!(check("a,b@s?offset=1", &files), Err(VolumeArgError::AmbiguousOffset));
        for empty in ["", "a,", ",a", "@x", "?offset=1"] {
            let error = check(empty, &files).unwrap_err().to_string();
            assert!(error.starts_with("the name of a device is empty"), "{empty}: {error}");
        }
    }

    #[test]
    fn an_argument_that_begins_with_a_device_names_a_volume() {
        let is_device = |path: &Path| path == Path::new("m/a.img") || path == Path::new("u@h/d");
        for volume in ["m/a.img@5", "m/a.img@", "m/a.img,b.img", "m/a.img?size=1", "u@h/d@s"] {
            assert!(begins_with(volume.as_bytes(), &is_device), "{volume}");
        }
        for other in ["m/a.img", "m/a.imgs", "m/new@5", "u@h/new", "@", ""] {
            assert!(!begins_with(other.as_bytes(), &is_device), "{other}");
        }
    }

    #[test]
    fn separate_arguments_are_one_volume() {
        let Ok(volume) = parse_with(&["a".into(), "b@s".into()], &|_| true) else { panic!() };
        assert_eq!(volume.devices.len(), 2);
        let exists = |path: &Path| !path.display().to_string().contains('@');
        let Ok(volume) = parse_with(&["a".into(), "b@s".into()], &exists) else { panic!() };
        assert_eq!(volume.subvolume, path("s"));
        let twice = parse_with(&["a@x".into(), "b@s".into()], &exists);
        let expected = VolumeArgError::TwoSubvolumes("x".into(), "s".into());
        assert_eq!(twice.err(), Some(expected));
    }
}
