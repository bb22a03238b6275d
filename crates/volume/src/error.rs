//! What can go wrong between a logical address and its bytes.

use crate::super_blocks::CopyReport;
use butternut_device::DeviceError;
use butternut_format::refused::Refused;
use butternut_format::units::{DevId, Generation, Logical};
use std::fmt;

/// An error with its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("no device was given")]
    NoDevices,
    /// Each copy says why it is no use.
    #[error("{device}: no usable superblock: {}", Listed(.copies))]
    NoSuperBlock { device: String, copies: Vec<CopyReport> },
    #[error("{device}: the volume is of a kind that is not supported")]
    Unsupported {
        device: String,
        #[source]
        refused: Refused,
    },
    #[error("{device}: fsid: have {}, want {} (as on {other})", Uuid(.have), Uuid(.want))]
    OtherVolume { device: String, have: [u8; 16], want: [u8; 16], other: String },
    #[error("{first} and {second} are both device {devid} at generation {generation}")]
    DuplicateDevice { first: String, second: String, devid: DevId, generation: Generation },
    #[error("missing {}", Devices(.devids))]
    MissingDevices { devids: Vec<DevId> },
    #[error(
        "without {} {} of {chunks} chunks cannot be read, the first at logical {}",
        Devices(.devids), .lost.len(), .lost.first().copied().unwrap_or_default()
    )]
    ChunksLost { devids: Vec<DevId>, chunks: usize, lost: Vec<Logical> },
    #[error("the chunks do not fit together")]
    Chunk(#[source] Refused),
    #[error("{bytes} bytes at logical {logical} are not in any chunk")]
    Unmapped { logical: Logical, bytes: u64 },
    /// The caller's lengths do not fit each other or the sector size.
    #[error("a transfer at logical {logical} cannot be done as asked")]
    Misshapen {
        logical: Logical,
        #[source]
        refused: Refused,
    },
    #[error("logical {logical}: writing to {profile} chunks is not supported")]
    ParityWrite { logical: Logical, profile: &'static str },
    /// The device ends before its device item says.
    #[error("{device}: device {devid} has {have} bytes, its device item says {want}")]
    Short { device: String, devid: DevId, have: u64, want: u64 },
    /// The superblock on the device is not the one that this process wrote last.
    #[error(
        "{device}: the superblock has been changed by another writer: have {have}, want {want}"
    )]
    ForeignSuper { device: String, have: String, want: String },
    #[error(transparent)]
    Unreadable(Box<Unreadable>),
    #[error("{device}: {bytes} bytes at {offset}")]
    Device {
        device: String,
        offset: u64,
        bytes: u64,
        #[source]
        source: DeviceError,
    },
}

/// Ranges of which no copy is good. Everything else of the read is.
#[derive(Debug, thiserror::Error)]
#[error("{}", Listed(.ranges))]
pub struct Unreadable {
    pub ranges: Vec<BadRange>,
}

/// One range of which no copy is good.
#[derive(Debug)]
pub struct BadRange {
    pub logical: Logical,
    pub bytes: u64,
    /// What each copy of its first sector said.
    pub copies: Vec<CopyVerdict>,
}

#[derive(Debug)]
pub struct CopyVerdict {
    pub copy: CopyKind,
    pub fault: CopyFault,
}

/// Where bytes came from, or would have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// Mirror `number`, from 1 as in the kernel's messages.
    Mirror { number: usize, devid: DevId },
    /// Computed from the rest of the row, without looking at these devices.
    Rebuilt { without: Vec<DevId> },
}

#[derive(Debug)]
pub enum CopyFault {
    /// The device is missing.
    Missing,
    Device(DeviceError),
    Refused(Refused),
    /// The device has missed writes, and no checksum tells whether this is one of them.
    Doubtful,
    /// More of the row is gone than its parity can bring back.
    TooManyLost,
}

impl VolumeError {
    /// The ranges that are bad where only some of a read is; empty where all of it is.
    pub fn bad_ranges(&self) -> &[BadRange] {
        if let Self::Unreadable(unreadable) = self { &unreadable.ranges } else { &[] }
    }
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "logical {} + {}: no good copy: ", self.logical, self.bytes)?;
        Listed(&self.copies).fmt(f)
    }
}

impl fmt::Display for CopyVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.copy {
            CopyKind::Mirror { number, devid } => write!(f, "mirror {number} (device {devid}): ")?,
            CopyKind::Rebuilt { without } => write!(f, "rebuilt without {}: ", Devices(without))?,
        }
        match &self.fault {
            CopyFault::Missing => f.write_str("missing"),
            CopyFault::Device(error) => error.fmt(f),
            CopyFault::Refused(refused) => refused.fmt(f),
            CopyFault::Doubtful => f.write_str(
                "the device has missed writes, and this data has no checksum to tell what is new",
            ),
            CopyFault::TooManyLost => f.write_str("too much of the row is lost"),
        }
    }
}

/// Items in a row, with semicolons between.
struct Listed<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for Listed<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// `device 2` or `devices 2, 5`.
struct Devices<'a>(&'a [DevId]);

impl fmt::Display for Devices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "device " } else { "devices " })?;
        for (index, devid) in self.0.iter().enumerate() {
            write!(f, "{}{devid}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Sixteen bytes as people write them: 8-4-4-4-12 digits.
struct Uuid<'a>(&'a [u8; 16]);

impl fmt::Display for Uuid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_range_says_what_each_copy_said() {
        let mirror = |number, devid, fault| CopyVerdict {
            copy: CopyKind::Mirror { number, devid: DevId(devid) },
            fault,
        };
        let refused = Refused::new("csum", "1", "2");
        let range = BadRange {
            logical: Logical(8192),
            bytes: 4096,
            copies: vec![
                mirror(1, 1, CopyFault::Missing),
                mirror(2, 7, CopyFault::Refused(refused)),
                CopyVerdict {
                    copy: CopyKind::Rebuilt { without: vec![DevId(1), DevId(7)] },
                    fault: CopyFault::TooManyLost,
                },
            ],
        };
        let error = VolumeError::Unreadable(Box::new(Unreadable { ranges: vec![range] }));
        assert_eq!(
            error.to_string(),
            "logical 8192 + 4096: no good copy: mirror 1 (device 1): missing; \
             mirror 2 (device 7): csum: have 1, want 2; \
             rebuilt without devices 1, 7: too much of the row is lost"
        );
        assert_eq!(error.bad_ranges().len(), 1);
    }

    #[test]
    fn another_volumes_device_is_named_with_both_ids() {
        let error = VolumeError::OtherVolume {
            device: "b.img".into(),
            have: [0xab; 16],
            want: [1; 16],
            other: "a.img".into(),
        };
        assert_eq!(
            error.to_string(),
            "b.img: fsid: have abababab-abab-abab-abab-abababababab, \
             want 01010101-0101-0101-0101-010101010101 (as on a.img)"
        );
    }
}
