//! The attributes of a command: found by their kind, in any order, each at most once.

use super::RawAttributeHeader;
use crate::inode::{RawTimespec, Time};
use crate::refused::{Refused, front, require};
use crate::uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One more than the largest kind that is known.
const KINDS: usize = 36;

/// A kind of attribute, and its name in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u16, &'static str);

impl Kind {
    pub(super) const UUID: Self = Self(1, "UUID");
    pub(super) const CTRANSID: Self = Self(2, "CTRANSID");
    pub(super) const INO: Self = Self(3, "INO");
    pub(super) const SIZE: Self = Self(4, "SIZE");
    pub(super) const MODE: Self = Self(5, "MODE");
    pub(super) const UID: Self = Self(6, "UID");
    pub(super) const GID: Self = Self(7, "GID");
    pub(super) const RDEV: Self = Self(8, "RDEV");
    pub(super) const CTIME: Self = Self(9, "CTIME");
    pub(super) const MTIME: Self = Self(10, "MTIME");
    pub(super) const ATIME: Self = Self(11, "ATIME");
    pub(super) const OTIME: Self = Self(12, "OTIME");
    pub(super) const XATTR_NAME: Self = Self(13, "XATTR_NAME");
    pub(super) const XATTR_DATA: Self = Self(14, "XATTR_DATA");
    pub(super) const PATH: Self = Self(15, "PATH");
    pub(super) const PATH_TO: Self = Self(16, "PATH_TO");
    pub(super) const PATH_LINK: Self = Self(17, "PATH_LINK");
    pub(super) const FILE_OFFSET: Self = Self(18, "FILE_OFFSET");
    pub(super) const DATA: Self = Self(19, "DATA");
    pub(super) const CLONE_UUID: Self = Self(20, "CLONE_UUID");
    pub(super) const CLONE_CTRANSID: Self = Self(21, "CLONE_CTRANSID");
    pub(super) const CLONE_PATH: Self = Self(22, "CLONE_PATH");
    pub(super) const CLONE_OFFSET: Self = Self(23, "CLONE_OFFSET");
    pub(super) const CLONE_LEN: Self = Self(24, "CLONE_LEN");
    pub(super) const FALLOCATE_MODE: Self = Self(25, "FALLOCATE_MODE");
    pub(super) const FILEATTR: Self = Self(26, "FILEATTR");
    pub(super) const UNENCODED_FILE_LEN: Self = Self(27, "UNENCODED_FILE_LEN");
    pub(super) const UNENCODED_LEN: Self = Self(28, "UNENCODED_LEN");
    pub(super) const UNENCODED_OFFSET: Self = Self(29, "UNENCODED_OFFSET");
    pub(super) const COMPRESSION: Self = Self(30, "COMPRESSION");
    pub(super) const ENCRYPTION: Self = Self(31, "ENCRYPTION");
    pub(super) const VERITY_ALGORITHM: Self = Self(32, "VERITY_ALGORITHM");
    pub(super) const VERITY_BLOCK_SIZE: Self = Self(33, "VERITY_BLOCK_SIZE");
    pub(super) const VERITY_SALT_DATA: Self = Self(34, "VERITY_SALT_DATA");
    pub(super) const VERITY_SIG_DATA: Self = Self(35, "VERITY_SIG_DATA");

    /// Returns the name in the kernel's headers, without its prefix.
    pub(super) fn name(self) -> &'static str {
        self.1
    }
}

/// The attributes of one command.
pub(super) struct Attributes<'a> {
    values: [Option<&'a [u8]>; KINDS],
}

impl<'a> Attributes<'a> {
    /// Splits the bytes of a command.
    pub(super) fn split(mut bytes: &'a [u8], data_is_last: bool) -> Result<Self, Refused> {
        let mut values = [None; KINDS];
        while !bytes.is_empty() {
            let (kind, _) = front::<U16>(bytes)?;
            let kind = kind.get();
            let value;
            if data_is_last && kind == Kind::DATA.0 {
                (value, bytes) = (bytes.get(2..).unwrap_or_default(), &[]);
            } else {
                let (header, rest) = front::<RawAttributeHeader>(bytes)?;
                let len = usize::from(header.len.get());
                (value, bytes) = rest.split_at_checked(len).ok_or_else(|| {
                    let want = format_args!("at most {}", rest.len()).to_string();
                    Refused::new("len", len, want).at(format_args!("attribute {kind}"))
                })?;
            }
            let slot = values
                .get_mut(usize::from(kind))
                .filter(|_| kind != 0)
                .ok_or_else(|| Refused::new("attribute", kind, "1 to 35"))?;
            require(slot.is_none(), "attribute", format_args!("{kind} twice"), "each kind once")?;
            *slot = Some(value);
        }
        Ok(Self { values })
    }

    /// Returns the value of an attribute that the command may lack.
    pub(super) fn find(&self, kind: Kind) -> Option<&'a [u8]> {
        self.values.get(usize::from(kind.0)).copied().flatten()
    }

    /// Returns the bytes of an attribute that the command must have.
    pub(super) fn bytes(&self, kind: Kind) -> Result<&'a [u8], Refused> {
        self.find(kind).ok_or_else(|| Refused::new(kind.1, "no such attribute", "one"))
    }

    pub(super) fn u64(&self, kind: Kind) -> Result<u64, Refused> {
        Ok(exact::<U64>(kind, self.bytes(kind)?)?.get())
    }

    pub(super) fn u8(&self, kind: Kind) -> Result<u8, Refused> {
        Ok(*exact::<u8>(kind, self.bytes(kind)?)?)
    }

    pub(super) fn u32(&self, kind: Kind) -> Result<u32, Refused> {
        Ok(exact::<U32>(kind, self.bytes(kind)?)?.get())
    }

    /// Returns an attribute of 8 bytes whose value has 32 bits.
    pub(super) fn u32_in_u64(&self, kind: Kind) -> Result<u32, Refused> {
        let value = self.u64(kind)?;
        u32::try_from(value).map_err(|_| Refused::new(kind.1, value, "below 2^32"))
    }

    pub(super) fn uuid(&self, kind: Kind) -> Result<Uuid, Refused> {
        Ok(Uuid(*exact::<[u8; 16]>(kind, self.bytes(kind)?)?))
    }

    pub(super) fn time(&self, kind: Kind) -> Result<Time, Refused> {
        time(kind, self.bytes(kind)?)
    }

    pub(super) fn time_if_any(&self, kind: Kind) -> Result<Option<Time>, Refused> {
        self.find(kind).map(|bytes| time(kind, bytes)).transpose()
    }
}

fn time(kind: Kind, bytes: &[u8]) -> Result<Time, Refused> {
    let time = Time::from(exact::<RawTimespec>(kind, bytes)?);
    require(
        time.nanos < 1_000_000_000,
        kind.1,
        format_args!("{} ns", time.nanos),
        "below 10^9 ns",
    )?;
    Ok(time)
}

fn exact<T>(kind: Kind, bytes: &[u8]) -> Result<&T, Refused>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let want = format_args!("{} bytes", size_of::<T>()).to_string();
    T::ref_from_bytes(bytes)
        .map_err(|_| Refused::new(kind.1, format_args!("{} bytes", bytes.len()), want))
}

/// Appends attributes to a command.
pub(super) struct Appender<'o> {
    pub(super) out: &'o mut Vec<u8>,
    pub(super) data_is_last: bool,
}

impl Appender<'_> {
    pub(super) fn bytes(&mut self, kind: Kind, value: &[u8]) -> Result<(), Refused> {
        let len = u16::try_from(value.len()).map_err(|_| {
            Refused::new(kind.1, format_args!("{} bytes", value.len()), "at most 65535 bytes")
        })?;
        let header = RawAttributeHeader { kind: U16::new(kind.0), len: U16::new(len) };
        self.out.extend_from_slice(header.as_bytes());
        self.out.extend_from_slice(value);
        Ok(())
    }

    /// Appends the data of a write, which is the last attribute.
    pub(super) fn data(&mut self, value: &[u8]) -> Result<(), Refused> {
        if !self.data_is_last {
            return self.bytes(Kind::DATA, value);
        }
        self.out.extend_from_slice(&Kind::DATA.0.to_le_bytes());
        self.out.extend_from_slice(value);
        Ok(())
    }

    pub(super) fn u64(&mut self, kind: Kind, value: u64) -> Result<(), Refused> {
        self.bytes(kind, &value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, kind: Kind, value: u32) -> Result<(), Refused> {
        self.bytes(kind, &value.to_le_bytes())
    }

    pub(super) fn time(&mut self, kind: Kind, value: Time) -> Result<(), Refused> {
        self.bytes(kind, RawTimespec::from(value).as_bytes())
    }
}
