//! Errors of mapping, reading and writing logical addresses.

use crate::super_blocks::CopyReport;
use butternut_device::DeviceError;
use butternut_format::refused::Refused;
use butternut_format::units::{DevId, Generation, Logical};
use std::fmt;
use std::sync::Arc;

/// Returns an error with its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("no device was given")]
    NoDevices,
    /// No copy of the superblock is usable; each report says why.
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
    /// A flush of these devices failed, so writes before it may be lost: nothing that follows is
    /// durable, and no superblock is written.
    #[error(
        "a flush of {} failed, and the volume is not complete without it: nothing more is made \
         durable",
        Devices(.devids)
    )]
    NotFlushed { devids: Vec<DevId> },
    /// The superblock to write breaks a law of the format, so none was written.
    #[error("{device}: no superblock was written: it would be invalid")]
    InvalidSuper {
        device: String,
        #[source]
        refused: Refused,
    },
    /// A data queue was used with another volume than the one that it was made for.
    #[error("the data queue belongs to another volume")]
    OtherQueue,
    #[error(
        "without {} {} of {chunks} chunks cannot be read, the first at logical {}",
        Devices(.devids), .lost.len(), .lost.first().copied().unwrap_or_default()
    )]
    ChunksLost { devids: Vec<DevId>, chunks: usize, lost: Vec<Logical> },
    #[error("the chunks do not fit together")]
    Chunk(#[source] Refused),
    #[error("{bytes} bytes at logical {logical} are not in any chunk")]
    Unmapped { logical: Logical, bytes: u64 },
    /// A length or an address does not fit the sector size, or the number of checksums does not fit
    /// the length.
    #[error("logical {logical}: invalid range")]
    InvalidRange {
        logical: Logical,
        #[source]
        refused: Refused,
    },
    /// Another write of the same batch writes some of these bytes.
    #[error("{bytes} bytes at logical {logical} overlap another write of the same batch")]
    Overlap { logical: Logical, bytes: u64 },
    /// The kernel's mount that held a device has ended, and the device is no longer this process'
    /// to write.
    #[error("the mount has ended without a last commit, and what it had not written is lost")]
    MountEnded(#[source] Arc<VolumeError>),
    /// [`Volume::end_writes`](crate::Volume::end_writes) was called.
    #[error("writing to the devices has ended")]
    WritesEnded,
    #[error("logical {logical}: writing to {profile} chunks is not supported")]
    ParityWrite { logical: Logical, profile: &'static str },
    /// The device is shorter than its device item says.
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

/// Ranges of which no mirror is good. The rest of the read is good.
#[derive(Debug, thiserror::Error)]
#[error("{}", Listed(.ranges))]
pub struct Unreadable {
    pub ranges: Vec<BadRange>,
}

/// One range of which no mirror is good.
#[derive(Debug)]
pub struct BadRange {
    pub logical: Logical,
    pub bytes: u64,
    /// The fault of each source of its first sector.
    pub sources: Vec<SourceVerdict>,
}

#[derive(Debug)]
pub struct SourceVerdict {
    pub source: ReadSource,
    pub fault: SourceFault,
}

/// A source of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadSource {
    /// Mirror `number`, counted from 1 as in the kernel's messages.
    Mirror { number: usize, devid: DevId },
    /// Reconstructed from the rest of the full stripe, without these devices.
    Reconstructed { without: Vec<DevId> },
}

#[derive(Debug)]
pub enum SourceFault {
    /// The device is missing.
    Missing,
    Device(DeviceError),
    Refused(Refused),
    /// Writes have failed on the device, and no checksum tells whether this is one of them.
    MaybeStale,
    /// More elements of the full stripe are lost than its parity can reconstruct.
    TooManyLost,
}

impl VolumeError {
    /// Returns the bad ranges if only a part of a read is bad; empty if all of it is.
    pub fn bad_ranges(&self) -> &[BadRange] {
        if let Self::Unreadable(unreadable) = self { &unreadable.ranges } else { &[] }
    }
}

impl fmt::Display for BadRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "logical {} + {}: no good copy: ", self.logical, self.bytes)?;
        Listed(&self.sources).fmt(f)
    }
}

impl fmt::Display for SourceVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            ReadSource::Mirror { number, devid } => {
                write!(f, "mirror {number} (device {devid}): ")?;
            }
            ReadSource::Reconstructed { without } => {
                write!(f, "rebuilt without {}: ", Devices(without))?;
            }
        }
        match &self.fault {
            SourceFault::Missing => f.write_str("missing"),
            SourceFault::Device(error) => error.fmt(f),
            SourceFault::Refused(refused) => refused.fmt(f),
            SourceFault::MaybeStale => f.write_str(
                "the device has missed writes, and this data has no checksum to tell what is new",
            ),
            SourceFault::TooManyLost => f.write_str("too many stripes are lost"),
        }
    }
}

/// Items separated by semicolons.
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

/// A UUID in the usual form of 8-4-4-4-12 digits.
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
    fn an_unreadable_range_names_the_fault_of_each_mirror() {
        let mirror = |number, devid, fault| SourceVerdict {
            source: ReadSource::Mirror { number, devid: DevId(devid) },
            fault,
        };
        let refused = Refused::new("csum", "1", "2");
        let range = BadRange {
            logical: Logical(8192),
            bytes: 4096,
            sources: vec![
                mirror(1, 1, SourceFault::Missing),
                mirror(2, 7, SourceFault::Refused(refused)),
                SourceVerdict {
                    source: ReadSource::Reconstructed { without: vec![DevId(1), DevId(7)] },
                    fault: SourceFault::TooManyLost,
                },
            ],
        };
        let error = VolumeError::Unreadable(Box::new(Unreadable { ranges: vec![range] }));
        assert_eq!(
            error.to_string(),
            "logical 8192 + 4096: no good copy: mirror 1 (device 1): missing; \
             mirror 2 (device 7): csum: have 1, want 2; \
             rebuilt without devices 1, 7: too many stripes are lost"
        );
        assert_eq!(error.bad_ranges().len(), 1);
    }

    #[test]
    fn a_device_of_another_volume_is_reported_with_both_uuids() {
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
