//! The report on a mounted volume as a whole: label, devices and space, in the form that the
//! control socket carries. Commands for a volume that is not mounted print the same structures of
//! the library.
//!
//! 1. A process may respond with any report. The client computes with its numbers, and no sum of
//!    them overflows: larger ones than [`BYTES_MAX`] are refused. The path of a device is printed
//!    in one line.

use std::path::{Path, PathBuf};

use butternut::{DeviceInfo, Error, Filesystem, GroupUsage, Usage};
use serde::{Deserialize, Serialize};

use crate::output::text;

/// Bytes that a volume has in all its devices, at most: 64 EiB would not fit into 64 bits.
const BYTES_MAX: u64 = 1 << 60;
/// Devices that a process may say that a volume has, at most, and combinations of type and profile.
const DEVICES_MAX: usize = 1 << 10;
const GROUPS_MAX: usize = 1 << 7;

/// A volume, with all changes that have reached its process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeReport {
    pub(crate) label: Vec<u8>,
    pub(crate) uuid: [u8; 16],
    /// What statfs(2) says that is free, in bytes.
    pub(crate) available_bytes: u64,
    global_reserve_bytes: u64,
    groups: Vec<Group>,
    devices: Vec<Device>,
}

/// [`GroupUsage`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    flags: u64,
    total_bytes: u64,
    used_bytes: u64,
    raw_bytes: u64,
    count: u64,
}

/// [`DeviceInfo`].
#[expect(clippy::struct_field_names, reason = "the names of the library's fields")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Device {
    id: u64,
    uuid: [u8; 16],
    path: Option<String>,
    missing: bool,
    stale: bool,
    seed: bool,
    device_bytes: u64,
    total_bytes: u64,
    allocated_bytes: u64,
    allocated: Vec<(u64, u64)>,
    read_errors: u64,
    corruption_errors: u64,
    generation_errors: u64,
}

impl VolumeReport {
    /// Reads the report. `paths` are the absolute paths of devices that were named by relative
    /// ones, which mean nothing to other processes.
    ///
    /// # Errors
    /// A tree cannot be read.
    pub(crate) fn read(filesystem: &Filesystem, paths: &[PathBuf]) -> Result<Self, Error> {
        let (usage, statfs) = (filesystem.usage()?, filesystem.statfs()?);
        let device = |info| Device::of(info).with_absolute_path(paths);
        Ok(Self {
            label: filesystem.label(),
            uuid: filesystem.super_block().fsid(),
            available_bytes: statfs.blocks_available.saturating_mul(statfs.block_bytes.into()),
            global_reserve_bytes: usage.global_reserve_bytes,
            groups: usage.groups.iter().map(Group::of).collect(),
            devices: usage.devices.into_iter().map(device).collect(),
        })
    }

    /// Checks a report of a process (law 1).
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn checked(mut self) -> Result<Self, String> {
        if self.devices.len() > DEVICES_MAX || self.groups.len() > GROUPS_MAX {
            return Err("its report has too many devices or block groups".to_owned());
        }
        let groups = self.groups.iter();
        let groups =
            groups.flat_map(|group| [group.total_bytes, group.used_bytes, group.raw_bytes]);
        let devices = self.devices.iter();
        let devices = devices.flat_map(|device| {
            let allocated = device.allocated.iter().map(|(_, bytes)| *bytes);
            allocated.chain([device.device_bytes, device.total_bytes, device.allocated_bytes])
        });
        let others = [self.available_bytes, self.global_reserve_bytes];
        let sum = groups.chain(devices).chain(others).fold(0, u64::saturating_add);
        // Each number is in the sum, so no sum of some of them is larger.
        if sum > BYTES_MAX {
            return Err("its report has more bytes than a volume".to_owned());
        }
        for path in self.devices.iter_mut().filter_map(|device| device.path.as_mut()) {
            *path = text::one_line(path);
        }
        Ok(self)
    }

    /// Returns the bytes in use, without copies and parity.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.used_bytes).sum()
    }

    /// Returns the usage, as the library reports it.
    pub(crate) fn into_usage(self) -> Usage {
        let mut usage = Usage::default();
        usage.groups = self.groups.into_iter().map(Group::into_usage).collect();
        usage.devices = self.devices.into_iter().map(Device::into_info).collect();
        usage.global_reserve_bytes = self.global_reserve_bytes;
        usage
    }
}

impl Group {
    fn of(from: &GroupUsage) -> Self {
        let GroupUsage { flags, total_bytes, used_bytes, raw_bytes, count, .. } = *from;
        Self { flags, total_bytes, used_bytes, raw_bytes, count }
    }

    fn into_usage(self) -> GroupUsage {
        let mut usage = GroupUsage::default();
        usage.flags = self.flags;
        usage.total_bytes = self.total_bytes;
        usage.used_bytes = self.used_bytes;
        usage.raw_bytes = self.raw_bytes;
        usage.count = self.count;
        usage
    }
}

impl Device {
    fn of(from: DeviceInfo) -> Self {
        Self {
            id: from.id,
            uuid: from.uuid,
            path: from.path,
            missing: from.missing,
            stale: from.stale,
            seed: from.seed,
            device_bytes: from.device_bytes,
            total_bytes: from.total_bytes,
            allocated_bytes: from.allocated_bytes,
            allocated: from.allocated,
            read_errors: from.read_errors,
            corruption_errors: from.corruption_errors,
            generation_errors: from.generation_errors,
        }
    }

    fn with_absolute_path(mut self, paths: &[PathBuf]) -> Self {
        if let Some(relative) = self.path.as_ref().map(Path::new).filter(|path| path.is_relative())
            && let Some(name) = relative.file_name()
            && let Some(path) = paths.iter().find(|path| path.file_name() == Some(name))
        {
            self.path = Some(path.display().to_string());
        }
        self
    }

    fn into_info(self) -> DeviceInfo {
        let mut info = DeviceInfo::default();
        info.id = self.id;
        info.uuid = self.uuid;
        info.path = self.path;
        info.missing = self.missing;
        info.stale = self.stale;
        info.seed = self.seed;
        info.device_bytes = self.device_bytes;
        info.total_bytes = self.total_bytes;
        info.allocated_bytes = self.allocated_bytes;
        info.allocated = self.allocated;
        info.read_errors = self.read_errors;
        info.corruption_errors = self.corruption_errors;
        info.generation_errors = self.generation_errors;
        info
    }
}

#[cfg(test)]
mod tests {
    use super::{Device, Group, VolumeReport};

    #[test]
    fn a_relative_path_of_a_device_becomes_absolute() {
        let paths = ["/a/x.img".into(), "/a/b.img".into()];
        for (path, want) in [("b.img", "/a/b.img"), ("/b/b.img", "/b/b.img"), ("c", "c")] {
            let device = Device { path: Some(path.to_owned()), ..Device::default() };
            assert_eq!(device.with_absolute_path(&paths).path.as_deref(), Some(want));
        }
    }

    #[test]
    fn a_report_with_impossible_numbers_is_refused() {
        let group = |used_bytes| Group { used_bytes, ..Group::default() };
        let report = |groups| VolumeReport { groups, ..VolumeReport::default() };
        report(vec![group(1 << 59)]).checked().expect("a large volume");
        report(vec![group(u64::MAX), group(1)]).checked().expect_err("a sum that overflows");
        report(vec![group(0); 1000]).checked().expect_err("too many groups");
        let device = Device { allocated: vec![(1, u64::MAX)], ..Device::default() };
        let report = VolumeReport { devices: vec![device], ..VolumeReport::default() };
        report.checked().expect_err("a large device");
    }

    #[test]
    fn a_path_of_a_device_has_one_line() {
        let path = Some("x\n\tdevid    2 size 9.00EiB used 0.00B path /dev/sdz".to_owned());
        let device = Device { path, ..Device::default() };
        let report = VolumeReport { devices: vec![device], ..VolumeReport::default() };
        let usage = report.checked().map(VolumeReport::into_usage).unwrap();
        let shown = usage.devices[0].path.as_deref().unwrap();
        assert!(shown.starts_with("x\\n") && !shown.contains(['\n', '\t']), "{shown}");
    }
}
