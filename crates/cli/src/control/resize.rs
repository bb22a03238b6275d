//! A new size of a volume on one of its devices: as it is typed, and in the form that the control
//! socket carries.
//!
//! 1. The process of a mount computes a relative size, `max` and `min`: the size may have changed
//!    since its client has seen it.
//! 2. A volume grows over no other partition or filesystem in the same file or device.
//! 3. A mount changes no image file. A volume grows up to the size that its file has by then, and a
//!    file stays as it is when its volume shrinks, as with the kernel's mounts.

use butternut::server::FilesystemExt;
use butternut::{DeviceInfo, Filesystem};
use serde::{Deserialize, Serialize};

use crate::control::held_device::HeldDevice;
use crate::failure::{Failure, chain, chain_with_hint};
use crate::output::size::{Units, pretty};
use crate::volume::growth;

/// The size of a volume is a multiple of this.
pub(crate) const SECTOR_BYTES: u64 = 4096;

/// Why a device that shares its file with another device of the volume keeps its size: the file
/// does not tell them apart.
pub(crate) const SEVERAL_IN_FILE: &str =
    "several devices of the volume are in this file, so none of them can be resized";

/// What to do about a size that the volume cannot have.
const AT_LEAST: &str = "choose at least the end of the last block group in use, or min";

/// A new size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NewSize {
    Exactly(u64),
    More(u64),
    Fewer(u64),
    /// The size of the device.
    Max,
    /// The end of the last block group in use.
    Min,
}

/// A device, and its new size. No device is that of a volume with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResizeRequest {
    pub(crate) devid: Option<u64>,
    pub(crate) size: NewSize,
}

/// A device that was resized, with its sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Resized {
    pub(crate) devid: u64,
    pub(crate) bytes_was: u64,
    pub(crate) bytes: u64,
}

impl NewSize {
    fn parse(typed: &str) -> Result<Self, Failure> {
        let bytes = |typed| crate::args::parse_bytes("size", typed);
        match typed {
            "max" => Ok(Self::Max),
            "min" => Ok(Self::Min),
            _ => match (typed.strip_prefix('+'), typed.strip_prefix('-')) {
                (Some(more), _) => bytes(more).map(Self::More),
                (_, Some(fewer)) => bytes(fewer).map(Self::Fewer),
                _ => bytes(typed).map(Self::Exactly),
            },
        }
    }

    /// Returns the new size of a device of `was` bytes, in whole sectors; `None` on overflow. `min`
    /// returns the smallest one, and `max` is the largest.
    ///
    /// # Errors
    /// That of `min`.
    pub(crate) fn of<E>(
        self,
        was: u64,
        min: impl FnOnce() -> Result<u64, E>,
        max: u64,
    ) -> Result<Option<u64>, E> {
        let bytes = match self {
            Self::Exactly(bytes) => Some(bytes),
            Self::More(bytes) => was.checked_add(bytes),
            Self::Fewer(bytes) => Some(was.saturating_sub(bytes)),
            Self::Max => Some(max),
            Self::Min => Some(min()?.next_multiple_of(SECTOR_BYTES)),
        };
        Ok(bytes.map(|bytes| bytes / SECTOR_BYTES * SECTOR_BYTES))
    }
}

impl ResizeRequest {
    /// Parses `[DEVID:]SIZE`.
    ///
    /// # Errors
    /// Neither the form of a size, nor of a device.
    pub(crate) fn parse(typed: &str) -> Result<Self, Failure> {
        let (devid, size) = match typed.split_once(':') {
            Some((devid, size)) => (Some(devid), size),
            None => (None, typed),
        };
        let devid = devid.map(|devid| {
            let failure = || Failure::new("size", format!("{devid:?} is not the id of a device"));
            devid.parse().map_err(|_| failure().hint("as in 1:10G"))
        });
        Ok(Self { devid: devid.transpose()?, size: NewSize::parse(size)? })
    }

    /// Returns the text that the kernel's call takes; `None` for `min`, which it does not have.
    pub(crate) fn for_kernel(&self) -> Option<String> {
        let size = match self.size {
            NewSize::Exactly(bytes) => bytes.to_string(),
            NewSize::More(bytes) => format!("+{bytes}"),
            NewSize::Fewer(bytes) => format!("-{bytes}"),
            NewSize::Max => "max".to_owned(),
            NewSize::Min => return None,
        };
        Some(self.devid.map_or_else(|| size.clone(), |devid| format!("{devid}:{size}")))
    }

    /// Returns the device to resize.
    ///
    /// # Errors
    /// The volume has no such device, or several and none is named.
    pub(crate) fn device<'a>(
        &self,
        devices: &'a [DeviceInfo],
    ) -> Result<&'a DeviceInfo, (String, String)> {
        // Other volumes use a seed, too.
        let own: Vec<&DeviceInfo> = devices.iter().filter(|device| !device.seed).collect();
        let found = match (self.devid, &own[..]) {
            (None, [only]) => Some(*only),
            (None, _) => None,
            (Some(devid), _) => own.iter().copied().find(|device| device.id == devid),
        };
        let known: Vec<String> = own.iter().map(|device| device.id.to_string()).collect();
        found.ok_or_else(|| {
            let why = self.devid.map(|devid| format!("no device {devid}"));
            let hint = format!("give DEVID:SIZE with one of the devices {}", known.join(", "));
            (why.unwrap_or_else(|| "no device is named".to_owned()), hint)
        })
    }

    /// Resizes a mounted volume on these devices, and commits.
    ///
    /// # Errors
    /// Why the volume cannot have the size, with a hint.
    pub(crate) fn apply(
        &self,
        filesystem: &Filesystem,
        held: &[HeldDevice],
    ) -> Result<Resized, String> {
        let failed = |error: butternut::Error| chain_with_hint(&error);
        let devices = filesystem.devices();
        let device = self.device(&devices).map_err(|(why, hint)| format!("{why} ({hint})"))?;
        let (devid, bytes_was) = (device.id, device.total_bytes);
        let max = filesystem.size_max(devid);
        let min = || {
            // Space that was freed is in use until a commit.
            filesystem.sync_names().map_err(failed)?;
            filesystem.size_min(devid).map_err(failed)
        };
        let bytes = self.size.of(bytes_was, min, max)?.filter(|bytes| *bytes <= max);
        let bytes = bytes.ok_or_else(|| {
            let has = pretty(max, Units::Binary);
            format!("the device has {has} (extend it or its image file first, or choose max)")
        })?;
        if bytes > bytes_was {
            check_growth(device, held, bytes)?;
        }
        let is_smaller = bytes < bytes_was;
        filesystem.resize(devid, bytes).map_err(|error| {
            let why = chain_with_hint(&error);
            if is_smaller { format!("{why} ({AT_LEAST})") } else { why }
        })?;
        filesystem.sync_names().map_err(failed)?;
        Ok(Resized { devid, bytes_was, bytes })
    }
}

/// Refuses to grow over something else in the same file or device.
fn check_growth(device: &DeviceInfo, held: &[HeldDevice], bytes: u64) -> Result<(), String> {
    let is_it = |held: &&HeldDevice| device.path.as_ref() == Some(&held.typed);
    let named = match held {
        [only] => Some(only),
        several => {
            let mut found = several.iter().filter(is_it);
            let first = found.next();
            if found.next().is_some() {
                return Err(SEVERAL_IN_FILE.to_owned());
            }
            first
        }
    };
    let named = named.filter(|held| held.is_there());
    let named = named.ok_or("the file or device is not found by its path any more")?;
    if named.bytes.is_some() {
        // A partition ends where its table says.
        return Ok(());
    }
    match growth::overlap(&named.path, named.offset, (device.total_bytes, bytes)) {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(format!("{why} ({})", growth::SMALLER)),
        Err(error) => Err(chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::{NewSize, ResizeRequest};

    #[test]
    fn sizes_are_parsed_with_and_without_a_device() {
        let parse =
            |typed: &str| ResizeRequest::parse(typed).map_err(|failure| failure.to_string());
        let size = |devid, size| Ok(ResizeRequest { devid, size });
        assert_eq!(parse("1M"), size(None, NewSize::Exactly(1 << 20)));
        assert_eq!(parse("2:+4K"), size(Some(2), NewSize::More(4096)));
        assert_eq!(parse("-1"), size(None, NewSize::Fewer(1)));
        assert_eq!(parse("1:max"), size(Some(1), NewSize::Max));
        assert_eq!(parse("min"), size(None, NewSize::Min));
        for typed in ["", "a:1M", ":1M", "+-1", "1:", "1:2:3"] {
            parse(typed).expect_err(typed);
        }
    }

    #[test]
    fn a_new_size_has_whole_sectors() {
        let of = |size: NewSize| size.of::<()>(8192, || Ok(4097), 16385);
        assert_eq!(of(NewSize::Max), Ok(Some(16384)));
        assert_eq!(of(NewSize::Min), Ok(Some(8192)), "not below the last block group");
        assert_eq!(of(NewSize::More(5000)), Ok(Some(12288)));
        assert_eq!(of(NewSize::Fewer(u64::MAX)), Ok(Some(0)));
        assert_eq!(of(NewSize::More(u64::MAX)), Ok(None));
    }
}
