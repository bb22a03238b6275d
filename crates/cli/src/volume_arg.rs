//! The volume argument: which devices, which subvolume, where in a bigger image.
//!
//! ```text
//! VOLUME = DEVICE [ "," DEVICE ]... [ "@" SUBVOL ]      DEVICE = PATH [ "?offset=" N ]
//! ```
//!
//! 1. What exists wins: an argument that is the path of a file is that file, whatever is in it;
//!    of several places to cut at `@`, the last one that leaves existing files is taken.
//! 2. A subvolume of digits only is an id; `@/12` is the path `12`.
//! 3. `?offset=N` may also stand after the subvolume; it is then that of the one device.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::{DevicePath, Subvolume};

use crate::output::size;

/// A volume as the user means it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeArg {
    pub(crate) devices: Vec<DevicePath>,
    pub(crate) subvolume: Subvolume,
    /// As typed, for messages.
    pub(crate) typed: String,
}

/// What is wrong with a volume argument, with what to do.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum VolumeArgError {
    #[error("no device before the @ or ? (write disk.img@snapshot)")]
    NoDevice,
    #[error("no subvolume after the @ (write a path or an id, or leave the @ out)")]
    NoSubvolume,
    #[error("offset {0:?} is not a number of bytes (write 1048576, 1024K or 1M)")]
    Offset(String),
    #[error("{0:?} after the ? (only ?offset=N is known)")]
    Setting(String),
    #[error("two subvolumes, {0} and {1} (name one)")]
    TwoSubvolumes(String, String),
    #[error("an offset after the subvolume of several devices (write it after its device)")]
    OffsetOfWhich,
}

/// Reads one or more arguments that together name one volume.
pub(crate) fn parse(words: &[OsString]) -> Result<VolumeArg, VolumeArgError> {
    parse_with(words, &|path| path.exists())
}

fn parse_with(
    words: &[OsString],
    exists: &dyn Fn(&Path) -> bool,
) -> Result<VolumeArg, VolumeArgError> {
    let typed: Vec<String> = words.iter().map(|word| word.display().to_string()).collect();
    let mut volume =
        VolumeArg { devices: Vec::new(), subvolume: Subvolume::Default, typed: typed.join(" ") };
    for word in words {
        let (devices, subvolume) = parse_word(word.as_bytes(), exists)?;
        volume.devices.extend(devices);
        match (&volume.subvolume, subvolume) {
            (_, Subvolume::Default) => {}
            (Subvolume::Default, named) => volume.subvolume = named,
            (first, second) => {
                return Err(VolumeArgError::TwoSubvolumes(shown(first), shown(&second)));
            }
        }
    }
    Ok(volume)
}

/// A subvolume as a message names it.
pub(crate) fn shown(subvolume: &Subvolume) -> String {
    match subvolume {
        Subvolume::Default => "the default".to_owned(),
        Subvolume::Id(id) => id.to_string(),
        Subvolume::Path(path) => String::from_utf8_lossy(path).into_owned(),
    }
}

/// A subvolume as a user names it: an id in digits, or a path.
pub(crate) fn subvolume(name: &[u8]) -> Subvolume {
    let id = std::str::from_utf8(name).ok().filter(|s| s.bytes().all(|b| b.is_ascii_digit()));
    match id.and_then(|digits| digits.parse().ok()) {
        Some(id) => Subvolume::Id(id),
        None => Subvolume::Path(name.to_vec()),
    }
}

fn parse_word(
    word: &[u8],
    exists: &dyn Fn(&Path) -> bool,
) -> Result<(Vec<DevicePath>, Subvolume), VolumeArgError> {
    let whole = devices(word, exists);
    if let Ok(devices) = &whole
        && devices.iter().all(|device| exists(&device.path))
    {
        return Ok((devices.clone(), Subvolume::Default));
    }
    let cuts: Vec<usize> = (0..word.len()).rev().filter(|at| word[*at] == b'@').collect();
    let stands = |cut: &usize| {
        devices(&word[..*cut], exists)
            .is_ok_and(|devices| devices.iter().all(|device| exists(&device.path)))
    };
    // Where nothing exists, the last cut gives the message that names what is missing.
    let Some(cut) = cuts.iter().find(|cut| stands(cut)).or(cuts.first()).copied() else {
        return Ok((whole?, Subvolume::Default));
    };
    let mut devices = devices(&word[..cut], exists)?;
    let (name, offset) = setting(&word[cut + 1..])?;
    if name.is_empty() {
        return Err(VolumeArgError::NoSubvolume);
    }
    if let Some(offset) = offset {
        let [device] = devices.as_mut_slice() else { return Err(VolumeArgError::OffsetOfWhich) };
        device.offset = offset;
    }
    Ok((devices, subvolume(name)))
}

fn devices(word: &[u8], exists: &dyn Fn(&Path) -> bool) -> Result<Vec<DevicePath>, VolumeArgError> {
    let path = |bytes: &[u8]| Path::new(OsStr::from_bytes(bytes)).to_path_buf();
    if exists(&path(word)) {
        return Ok(vec![DevicePath { path: path(word), offset: 0 }]);
    }
    let mut devices = Vec::new();
    for part in word.split(|byte| *byte == b',') {
        let (name, offset) = if exists(&path(part)) { (part, None) } else { setting(part)? };
        if name.is_empty() {
            return Err(VolumeArgError::NoDevice);
        }
        devices.push(DevicePath { path: path(name), offset: offset.unwrap_or(0) });
    }
    Ok(devices)
}

/// Cuts `?offset=N` off the end.
fn setting(word: &[u8]) -> Result<(&[u8], Option<u64>), VolumeArgError> {
    let Some(at) = word.iter().rposition(|byte| *byte == b'?') else { return Ok((word, None)) };
    let text = String::from_utf8_lossy(&word[at + 1..]).into_owned();
    let Some(number) = text.strip_prefix("offset=") else {
        return Err(VolumeArgError::Setting(text));
    };
    let offset = size::parse(number).ok_or_else(|| VolumeArgError::Offset(number.to_owned()))?;
    Ok((&word[..at], Some(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        word: &str,
        files: &[&str],
    ) -> Result<(Vec<(String, u64)>, Subvolume), VolumeArgError> {
        let exists = |path: &Path| files.iter().any(|file| Path::new(file) == path);
        let volume = parse_with(&[word.into()], &exists)?;
        let devices =
            volume.devices.iter().map(|d| (d.path.display().to_string(), d.offset)).collect();
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
    fn an_at_sign_names_a_subvolume_by_path_or_id() {
        assert_eq!(check("a.img@snap1", &["a.img"]), Ok((one("a.img", 0), path("snap1"))));
        assert_eq!(check("a.img@257", &["a.img"]), Ok((one("a.img", 0), Subvolume::Id(257))));
        assert_eq!(check("a.img@/257", &["a.img"]), Ok((one("a.img", 0), path("/257"))));
        assert_eq!(check("a.img@x/y@z", &["a.img"]), Ok((one("a.img", 0), path("x/y@z"))));
        assert_eq!(check("a.img@", &["a.img"]), Err(VolumeArgError::NoSubvolume));
        assert_eq!(check("@x", &[]), Err(VolumeArgError::NoDevice));
    }

    #[test]
    fn a_file_with_an_at_sign_that_exists_wins() {
        let files = ["a.img", "a.img@snap1", "u@h/d.img"];
        let at = one("a.img@snap1", 0);
        assert_eq!(check("a.img@snap1", &files), Ok((at.clone(), Subvolume::Default)));
        assert_eq!(check("a.img@snap1@s", &files), Ok((at, path("s"))));
        assert_eq!(check("u@h/d.img@s", &files), Ok((one("u@h/d.img", 0), path("s"))));
    }

    #[test]
    fn an_offset_takes_bytes_and_suffixes() {
        let files = ["a.img"];
        let at = |offset| Ok((one("a.img", offset), Subvolume::Default));
        assert_eq!(check("a.img?offset=1048576", &files), at(1 << 20));
        assert_eq!(check("a.img?offset=1M", &files), at(1 << 20));
        assert_eq!(check("a.img?offset=64k", &files), at(64 << 10));
        assert_eq!(check("a.img?offset=0x1000", &files), at(4096));
        let with_snapshot = Ok((one("a.img", 1 << 30), path("s")));
        assert_eq!(check("a.img?offset=1G@s", &files), with_snapshot);
        assert_eq!(check("a.img@s?offset=1G", &files), with_snapshot);
        assert_eq!(check("a.img?offset=x", &files), Err(VolumeArgError::Offset("x".into())));
        assert_eq!(check("a.img?size=1", &files), Err(VolumeArgError::Setting("size=1".into())));
    }

    #[test]
    fn commas_join_devices_and_each_may_have_an_offset() {
        let files = ["a", "b", "c,d"];
        let two = vec![("a".to_owned(), 0), ("b".to_owned(), 4096)];
        assert_eq!(check("a,b?offset=4K@s", &files), Ok((two, path("s"))));
        assert_eq!(check("c,d", &files), Ok((one("c,d", 0), Subvolume::Default)));
        assert_eq!(check("a,b@s?offset=1", &files), Err(VolumeArgError::OffsetOfWhich));
        assert_eq!(check("a,", &files), Err(VolumeArgError::NoDevice));
    }

    #[test]
    fn separate_arguments_are_one_volume() {
        let volume = parse_with(&["a".into(), "b@s".into()], &|_| true).unwrap();
        assert_eq!(volume.devices.len(), 2);
        let exists = |path: &Path| !path.display().to_string().contains('@');
        let volume = parse_with(&["a".into(), "b@s".into()], &exists).unwrap();
        assert_eq!(volume.subvolume, path("s"));
        let twice = parse_with(&["a@x".into(), "b@s".into()], &exists);
        assert_eq!(twice, Err(VolumeArgError::TwoSubvolumes("x".into(), "s".into())));
    }
}
