//! [`Command`]: one command of a stream, decoded from its bytes and encoded to them.

use super::attribute::{Appender, Attributes, Kind};
use super::{COMMAND_HEADER_BYTES, StreamVersion, open, seal};
use crate::inode::{DeviceNumber, Time};
use crate::refused::{Refused, require};
use crate::uuid::Uuid;

/// The number of the last command of version 1, `UPDATE_EXTENT`.
const LAST_OF_VERSION_1: u16 = 22;
/// The number of the last command of version 2, `ENCODED_WRITE`.
const LAST_OF_VERSION_2: u16 = 25;
/// The number of `ENABLE_VERITY`, which version 3 added.
const ENABLE_VERITY: u16 = 26;

/// A command of a stream.
///
/// Paths are as in the stream; [`super::components`] checks them. `path` is relative to the root of
/// the subvolume that the stream makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Creates the subvolume that the following commands fill. `path` is its name.
    Subvol {
        path: &'a [u8],
        uuid: Uuid,
        ctransid: u64,
    },
    /// Creates the subvolume as a snapshot of one that was received before, or of its source.
    Snapshot {
        path: &'a [u8],
        uuid: Uuid,
        ctransid: u64,
        /// The UUID of the parent, or the one that the parent was received from.
        clone_uuid: Uuid,
        clone_ctransid: u64,
    },
    /// Creates an empty file. The kernel chooses a temporary name and renames it.
    Mkfile {
        path: &'a [u8],
        ino: u64,
    },
    Mkdir {
        path: &'a [u8],
        ino: u64,
    },
    /// Creates a device. `mode` has the type.
    Mknod {
        path: &'a [u8],
        ino: u64,
        device: DeviceNumber,
        mode: u32,
    },
    /// Creates a fifo. `device` is always 0.
    Mkfifo {
        path: &'a [u8],
        ino: u64,
        device: DeviceNumber,
        mode: u32,
    },
    /// Creates a socket. `device` is always 0.
    Mksock {
        path: &'a [u8],
        ino: u64,
        device: DeviceNumber,
        mode: u32,
    },
    Symlink {
        path: &'a [u8],
        ino: u64,
        target: &'a [u8],
    },
    Rename {
        path: &'a [u8],
        to: &'a [u8],
    },
    /// Creates the name `path` for the file that `existing` names.
    Link {
        path: &'a [u8],
        existing: &'a [u8],
    },
    Unlink {
        path: &'a [u8],
    },
    Rmdir {
        path: &'a [u8],
    },
    SetXattr {
        path: &'a [u8],
        name: &'a [u8],
        value: &'a [u8],
    },
    RemoveXattr {
        path: &'a [u8],
        name: &'a [u8],
    },
    Write {
        path: &'a [u8],
        offset: u64,
        data: &'a [u8],
    },
    /// Shares a range of the file `clone_path` of the subvolume with `clone_uuid`.
    Clone {
        path: &'a [u8],
        offset: u64,
        len: u64,
        clone_uuid: Uuid,
        clone_ctransid: u64,
        clone_path: &'a [u8],
        clone_offset: u64,
    },
    Truncate {
        path: &'a [u8],
        size: u64,
    },
    /// Sets the permission bits; the kernel sends no type.
    Chmod {
        path: &'a [u8],
        mode: u32,
    },
    Chown {
        path: &'a [u8],
        uid: u32,
        gid: u32,
    },
    /// Sets times. `otime` needs version 2.
    Utimes {
        path: &'a [u8],
        atime: Time,
        mtime: Time,
        ctime: Time,
        otime: Option<Time>,
    },
    /// Ends the stream.
    End,
    /// Says that a range has changed, in streams without data.
    UpdateExtent {
        path: &'a [u8],
        offset: u64,
        len: u64,
    },
    /// Calls fallocate(2); `mode` has its flags. Version 2.
    Fallocate {
        path: &'a [u8],
        mode: u32,
        offset: u64,
        len: u64,
    },
    /// Sets the flags of the inode, as in its item. Version 2.
    Fileattr {
        path: &'a [u8],
        flags: u64,
    },
    /// Writes data that is compressed: `unencoded_file_len` bytes at `offset`, which are the bytes
    /// from `unencoded_offset` on of the `unencoded_len` bytes that `data` decompresses to.
    /// Version 2.
    EncodedWrite {
        path: &'a [u8],
        offset: u64,
        unencoded_file_len: u64,
        unencoded_len: u64,
        unencoded_offset: u64,
        compression: StreamCompression,
        /// Always 0.
        encryption: u32,
        data: &'a [u8],
    },
    /// Seals a file by fs-verity, after all of its data. Version 3.
    EnableVerity {
        path: &'a [u8],
        /// The number of the hash function.
        algorithm: u8,
        block_bytes: u32,
        salt: &'a [u8],
        signature: &'a [u8],
    },
}

/// The compression of an `ENCODED_WRITE` (`BTRFS_ENCODED_IO_COMPRESSION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamCompression {
    None,
    Zlib,
    Zstd,
    /// LZO in the format of btrfs with sectors of 4 KiB; the others have larger sectors.
    Lzo4K,
    Lzo8K,
    Lzo16K,
    Lzo32K,
    Lzo64K,
}

impl StreamCompression {
    const ALL: [Self; 8] = [
        Self::None,
        Self::Zlib,
        Self::Zstd,
        Self::Lzo4K,
        Self::Lzo8K,
        Self::Lzo16K,
        Self::Lzo32K,
        Self::Lzo64K,
    ];

    /// Returns the number in a stream.
    pub fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Zlib => 1,
            Self::Zstd => 2,
            Self::Lzo4K => 3,
            Self::Lzo8K => 4,
            Self::Lzo16K => 5,
            Self::Lzo32K => 6,
            Self::Lzo64K => 7,
        }
    }

    fn check(number: u32) -> Result<Self, Refused> {
        let found = Self::ALL.into_iter().find(|known| known.number() == number);
        found.ok_or_else(|| Refused::new(Kind::COMPRESSION.name(), number, "0 to 7"))
    }
}

impl<'a> Command<'a> {
    /// Decodes one command with its header. [`super::command_bytes`] returns its size.
    ///
    /// # Errors
    /// The size or the checksum is wrong, the version does not have the command, or an attribute is
    /// missing or invalid.
    pub fn decode(version: StreamVersion, bytes: &'a [u8]) -> Result<Self, Refused> {
        let (cmd, rest) = open(version, bytes)?;
        let name = check_number(version, cmd)?;
        Attributes::split(rest, version.data_is_last())
            .and_then(|attributes| {
                if cmd < 15 {
                    name_command(cmd, &attributes)
                } else {
                    data_command(cmd, &attributes)
                }
            })
            .map_err(|refused| refused.at(name))
    }

    /// Appends the bytes of the command to `out`. `out` is unchanged if that fails.
    ///
    /// # Errors
    /// The version does not have the command or one of its attributes, or a value is too long.
    pub fn encode(&self, version: StreamVersion, out: &mut Vec<u8>) -> Result<(), Refused> {
        let start = out.len();
        let cmd = self.number();
        let encoded = check_number(version, cmd).and_then(|_| {
            out.extend_from_slice(&[0; COMMAND_HEADER_BYTES]);
            let mut to = Appender { out, data_is_last: version.data_is_last() };
            self.encode_attributes(version, &mut to)?;
            seal(version, cmd, out, start)
        });
        encoded.map_err(|refused| {
            out.truncate(start);
            refused.at(self.name())
        })
    }

    /// Returns the number of the command in a stream.
    pub fn number(&self) -> u16 {
        match self {
            Self::Subvol { .. } => 1,
            Self::Snapshot { .. } => 2,
            Self::Mkfile { .. } => 3,
            Self::Mkdir { .. } => 4,
            Self::Mknod { .. } => 5,
            Self::Mkfifo { .. } => 6,
            Self::Mksock { .. } => 7,
            Self::Symlink { .. } => 8,
            Self::Rename { .. } => 9,
            Self::Link { .. } => 10,
            Self::Unlink { .. } => 11,
            Self::Rmdir { .. } => 12,
            Self::SetXattr { .. } => 13,
            Self::RemoveXattr { .. } => 14,
            Self::Write { .. } => 15,
            Self::Clone { .. } => 16,
            Self::Truncate { .. } => 17,
            Self::Chmod { .. } => 18,
            Self::Chown { .. } => 19,
            Self::Utimes { .. } => 20,
            Self::End => 21,
            Self::UpdateExtent { .. } => 22,
            Self::Fallocate { .. } => 23,
            Self::Fileattr { .. } => 24,
            Self::EncodedWrite { .. } => 25,
            Self::EnableVerity { .. } => ENABLE_VERITY,
        }
    }

    /// Returns the name of the command, as `btrfs receive --dump` prints it.
    pub fn name(&self) -> &'static str {
        name_of(self.number()).unwrap_or("unknown command")
    }

    /// Returns the path of the command, which `END` alone lacks.
    pub fn path(&self) -> Option<&'a [u8]> {
        match *self {
            Self::End => None,
            Self::Subvol { path, .. }
            | Self::Snapshot { path, .. }
            | Self::Mkfile { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Mknod { path, .. }
            | Self::Mkfifo { path, .. }
            | Self::Mksock { path, .. }
            | Self::Symlink { path, .. }
            | Self::Rename { path, .. }
            | Self::Link { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::Write { path, .. }
            | Self::Clone { path, .. }
            | Self::Truncate { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimes { path, .. }
            | Self::UpdateExtent { path, .. }
            | Self::Fallocate { path, .. }
            | Self::Fileattr { path, .. }
            | Self::EncodedWrite { path, .. }
            | Self::EnableVerity { path, .. } => Some(path),
        }
    }

    /// Returns the other path of the command: the new one of a rename, the existing one of a link,
    /// the source of a clone.
    pub fn other_path(&self) -> Option<&'a [u8]> {
        if let Self::Rename { to: path, .. }
        | Self::Link { existing: path, .. }
        | Self::Clone { clone_path: path, .. } = *self
        {
            Some(path)
        } else {
            None
        }
    }

    /// Appends the attributes of the command: here, those of the commands 1 to 14.
    fn encode_attributes(
        &self,
        version: StreamVersion,
        to: &mut Appender<'_>,
    ) -> Result<(), Refused> {
        match *self {
            Self::Subvol { path, uuid, ctransid } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::UUID, &uuid.0)?;
                to.u64(Kind::CTRANSID, ctransid)
            }
            Self::Snapshot { path, uuid, ctransid, clone_uuid, clone_ctransid } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::UUID, &uuid.0)?;
                to.u64(Kind::CTRANSID, ctransid)?;
                to.bytes(Kind::CLONE_UUID, &clone_uuid.0)?;
                to.u64(Kind::CLONE_CTRANSID, clone_ctransid)
            }
            Self::Mkfile { path, ino } | Self::Mkdir { path, ino } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::INO, ino)
            }
            Self::Mknod { path, ino, device, mode }
            | Self::Mkfifo { path, ino, device, mode }
            | Self::Mksock { path, ino, device, mode } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::INO, ino)?;
                to.u64(Kind::RDEV, device_to_stream(device))?;
                to.u64(Kind::MODE, u64::from(mode))
            }
            Self::Symlink { path, ino, target } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::INO, ino)?;
                to.bytes(Kind::PATH_LINK, target)
            }
            Self::Rename { path, to: target } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::PATH_TO, target)
            }
            Self::Link { path, existing } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::PATH_LINK, existing)
            }
            Self::Unlink { path } | Self::Rmdir { path } => to.bytes(Kind::PATH, path),
            Self::SetXattr { path, name, value } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::XATTR_NAME, name)?;
                to.bytes(Kind::XATTR_DATA, value)
            }
            Self::RemoveXattr { path, name } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::XATTR_NAME, name)
            }
            Self::Write { .. }
            | Self::Clone { .. }
            | Self::Truncate { .. }
            | Self::Chmod { .. }
            | Self::Chown { .. }
            | Self::Utimes { .. }
            | Self::End
            | Self::UpdateExtent { .. }
            | Self::Fallocate { .. }
            | Self::Fileattr { .. }
            | Self::EncodedWrite { .. }
            | Self::EnableVerity { .. } => self.encode_data(version, to),
        }
    }

    /// Appends the attributes of the commands from 15 on.
    fn encode_data(&self, version: StreamVersion, to: &mut Appender<'_>) -> Result<(), Refused> {
        match *self {
            Self::Write { path, offset, data } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::FILE_OFFSET, offset)?;
                to.data(data)
            }
            Self::Truncate { path, size } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::SIZE, size)
            }
            Self::Chmod { path, mode } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::MODE, u64::from(mode))
            }
            Self::Chown { path, uid, gid } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::UID, u64::from(uid))?;
                to.u64(Kind::GID, u64::from(gid))
            }
            Self::Utimes { path, atime, mtime, ctime, otime } => {
                to.bytes(Kind::PATH, path)?;
                to.time(Kind::ATIME, atime)?;
                to.time(Kind::MTIME, mtime)?;
                to.time(Kind::CTIME, ctime)?;
                let Some(otime) = otime else { return Ok(()) };
                let is_known = version != StreamVersion::One;
                require(is_known, Kind::OTIME.name(), "a time", "none in version 1")?;
                to.time(Kind::OTIME, otime)
            }
            Self::UpdateExtent { path, offset, len } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::FILE_OFFSET, offset)?;
                to.u64(Kind::SIZE, len)
            }
            Self::Fallocate { path, mode, offset, len } => {
                to.bytes(Kind::PATH, path)?;
                to.u32(Kind::FALLOCATE_MODE, mode)?;
                to.u64(Kind::FILE_OFFSET, offset)?;
                to.u64(Kind::SIZE, len)
            }
            Self::Fileattr { path, flags } => {
                to.bytes(Kind::PATH, path)?;
                to.u64(Kind::FILEATTR, flags)
            }
            Self::Clone { .. } => self.encode_clone(to),
            Self::EncodedWrite { .. } => self.encode_encoded_write(to),
            Self::EnableVerity { path, algorithm, block_bytes, salt, signature } => {
                to.bytes(Kind::PATH, path)?;
                to.bytes(Kind::VERITY_ALGORITHM, &[algorithm])?;
                to.u32(Kind::VERITY_BLOCK_SIZE, block_bytes)?;
                to.bytes(Kind::VERITY_SALT_DATA, salt)?;
                to.bytes(Kind::VERITY_SIG_DATA, signature)
            }
            Self::Subvol { .. }
            | Self::Snapshot { .. }
            | Self::Mkfile { .. }
            | Self::Mkdir { .. }
            | Self::Mknod { .. }
            | Self::Mkfifo { .. }
            | Self::Mksock { .. }
            | Self::Symlink { .. }
            | Self::Rename { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::End => Ok(()),
        }
    }

    fn encode_clone(&self, to: &mut Appender<'_>) -> Result<(), Refused> {
        let Self::Clone {
            path,
            offset,
            len,
            clone_uuid: uuid,
            clone_ctransid: ctransid,
            clone_path: from_path,
            clone_offset: from_offset,
        } = *self
        else {
            return Ok(());
        };
        to.u64(Kind::FILE_OFFSET, offset)?;
        to.u64(Kind::CLONE_LEN, len)?;
        to.bytes(Kind::PATH, path)?;
        to.bytes(Kind::CLONE_UUID, &uuid.0)?;
        to.u64(Kind::CLONE_CTRANSID, ctransid)?;
        to.bytes(Kind::CLONE_PATH, from_path)?;
        to.u64(Kind::CLONE_OFFSET, from_offset)
    }

    fn encode_encoded_write(&self, to: &mut Appender<'_>) -> Result<(), Refused> {
        let Self::EncodedWrite {
            path,
            offset,
            unencoded_file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            encryption,
            data,
        } = *self
        else {
            return Ok(());
        };
        to.bytes(Kind::PATH, path)?;
        to.u64(Kind::FILE_OFFSET, offset)?;
        to.u64(Kind::UNENCODED_FILE_LEN, unencoded_file_len)?;
        to.u64(Kind::UNENCODED_LEN, unencoded_len)?;
        to.u64(Kind::UNENCODED_OFFSET, unencoded_offset)?;
        to.u32(Kind::COMPRESSION, compression.number())?;
        to.u32(Kind::ENCRYPTION, encryption)?;
        to.data(data)
    }
}

/// Checks that a version has a command, and returns the command's name.
fn check_number(version: StreamVersion, cmd: u16) -> Result<&'static str, Refused> {
    let last = match version {
        StreamVersion::One => LAST_OF_VERSION_1,
        StreamVersion::Two => LAST_OF_VERSION_2,
        StreamVersion::Three => ENABLE_VERITY,
    };
    name_of(cmd).filter(|_| cmd <= last).ok_or_else(|| {
        let want = format_args!("1 to {last} in version {}", version.number()).to_string();
        Refused::new("cmd", cmd, want)
    })
}

fn name_of(cmd: u16) -> Option<&'static str> {
    const NAMES: [&str; 26] = [
        "subvol",
        "snapshot",
        "mkfile",
        "mkdir",
        "mknod",
        "mkfifo",
        "mksock",
        "symlink",
        "rename",
        "link",
        "unlink",
        "rmdir",
        "set_xattr",
        "remove_xattr",
        "write",
        "clone",
        "truncate",
        "chmod",
        "chown",
        "utimes",
        "end",
        "update_extent",
        "fallocate",
        "fileattr",
        "encoded_write",
        "enable_verity",
    ];
    NAMES.get(usize::from(cmd.checked_sub(1)?)).copied()
}

/// Decodes the commands 1 to 14, which change names and extended attributes.
fn name_command<'a>(cmd: u16, attributes: &Attributes<'a>) -> Result<Command<'a>, Refused> {
    let path = attributes.bytes(Kind::PATH)?;
    let ino = || attributes.u64(Kind::INO);
    let device = || device_of_stream(attributes.u64(Kind::RDEV)?);
    let mode = || attributes.u32_in_u64(Kind::MODE);
    let link = || attributes.bytes(Kind::PATH_LINK);
    Ok(match cmd {
        1 => Command::Subvol {
            path,
            uuid: attributes.uuid(Kind::UUID)?,
            ctransid: attributes.u64(Kind::CTRANSID)?,
        },
        2 => Command::Snapshot {
            path,
            uuid: attributes.uuid(Kind::UUID)?,
            ctransid: attributes.u64(Kind::CTRANSID)?,
            clone_uuid: attributes.uuid(Kind::CLONE_UUID)?,
            clone_ctransid: attributes.u64(Kind::CLONE_CTRANSID)?,
        },
        3 => Command::Mkfile { path, ino: ino()? },
        4 => Command::Mkdir { path, ino: ino()? },
        5 => Command::Mknod { path, ino: ino()?, device: device()?, mode: mode()? },
        6 => Command::Mkfifo { path, ino: ino()?, device: device()?, mode: mode()? },
        7 => Command::Mksock { path, ino: ino()?, device: device()?, mode: mode()? },
        8 => Command::Symlink { path, ino: ino()?, target: link()? },
        9 => Command::Rename { path, to: attributes.bytes(Kind::PATH_TO)? },
        10 => Command::Link { path, existing: link()? },
        11 => Command::Unlink { path },
        12 => Command::Rmdir { path },
        13 => Command::SetXattr {
            path,
            name: attributes.bytes(Kind::XATTR_NAME)?,
            value: attributes.bytes(Kind::XATTR_DATA)?,
        },
        14 => Command::RemoveXattr { path, name: attributes.bytes(Kind::XATTR_NAME)? },
        _ => return Err(Refused::new("cmd", cmd, "1 to 14")),
    })
}

/// Decodes the commands from 15 on, which change data and attributes of inodes.
fn data_command<'a>(cmd: u16, attributes: &Attributes<'a>) -> Result<Command<'a>, Refused> {
    if cmd == 21 {
        return Ok(Command::End);
    }
    let path = attributes.bytes(Kind::PATH)?;
    let offset = || attributes.u64(Kind::FILE_OFFSET);
    let size = || attributes.u64(Kind::SIZE);
    Ok(match cmd {
        15 => Command::Write { path, offset: offset()?, data: attributes.bytes(Kind::DATA)? },
        16 => Command::Clone {
            path,
            offset: offset()?,
            len: attributes.u64(Kind::CLONE_LEN)?,
            clone_uuid: attributes.uuid(Kind::CLONE_UUID)?,
            clone_ctransid: attributes.u64(Kind::CLONE_CTRANSID)?,
            clone_path: attributes.bytes(Kind::CLONE_PATH)?,
            clone_offset: attributes.u64(Kind::CLONE_OFFSET)?,
        },
        17 => Command::Truncate { path, size: size()? },
        18 => Command::Chmod { path, mode: attributes.u32_in_u64(Kind::MODE)? },
        19 => Command::Chown {
            path,
            uid: attributes.u32_in_u64(Kind::UID)?,
            gid: attributes.u32_in_u64(Kind::GID)?,
        },
        20 => Command::Utimes {
            path,
            atime: attributes.time(Kind::ATIME)?,
            mtime: attributes.time(Kind::MTIME)?,
            ctime: attributes.time(Kind::CTIME)?,
            otime: attributes.time_if_any(Kind::OTIME)?,
        },
        22 => Command::UpdateExtent { path, offset: offset()?, len: size()? },
        23 => Command::Fallocate {
            path,
            mode: attributes.u32(Kind::FALLOCATE_MODE)?,
            offset: offset()?,
            len: size()?,
        },
        24 => Command::Fileattr { path, flags: attributes.u64(Kind::FILEATTR)? },
        25 => encoded_write(path, attributes)?,
        ENABLE_VERITY => Command::EnableVerity {
            path,
            algorithm: attributes.u8(Kind::VERITY_ALGORITHM)?,
            block_bytes: attributes.u32(Kind::VERITY_BLOCK_SIZE)?,
            salt: attributes.bytes(Kind::VERITY_SALT_DATA)?,
            signature: attributes.bytes(Kind::VERITY_SIG_DATA)?,
        },
        _ => return Err(Refused::new("cmd", cmd, "15 to 26")),
    })
}

fn encoded_write<'a>(path: &'a [u8], attributes: &Attributes<'a>) -> Result<Command<'a>, Refused> {
    // A sender may omit what is 0.
    let number = |kind| attributes.find(kind).map_or(Ok(0), |_| attributes.u32(kind));
    let compression = StreamCompression::check(number(Kind::COMPRESSION)?)?;
    let encryption = number(Kind::ENCRYPTION)?;
    require(encryption == 0, Kind::ENCRYPTION.name(), encryption, "0")?;
    Ok(Command::EncodedWrite {
        path,
        offset: attributes.u64(Kind::FILE_OFFSET)?,
        unencoded_file_len: attributes.u64(Kind::UNENCODED_FILE_LEN)?,
        unencoded_len: attributes.u64(Kind::UNENCODED_LEN)?,
        unencoded_offset: attributes.u64(Kind::UNENCODED_OFFSET)?,
        compression,
        encryption,
        data: attributes.bytes(Kind::DATA)?,
    })
}

/// Returns a device number as in a stream, which is that of stat(2): the lower 8 bits of the minor
/// number, 12 bits of the major number, and the upper 12 bits of the minor number.
fn device_to_stream(device: DeviceNumber) -> u64 {
    let (major, minor) = (u64::from(device.major()), u64::from(device.minor()));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

fn device_of_stream(device: u64) -> Result<DeviceNumber, Refused> {
    let low =
        u32::try_from(device).map_err(|_| Refused::new(Kind::RDEV.name(), device, "below 2^32"))?;
    Ok(DeviceNumber::new(low >> 8 & 0xfff, low & 0xff | low >> 12 & 0xf_ff00))
}
