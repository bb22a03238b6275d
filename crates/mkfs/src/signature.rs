//! Detects filesystems and partition tables by their magic numbers at the start of a device. It
//! guards against accidental overwriting and does not know every format.

use butternut_device::partitions::TableKind;
use butternut_device::{Device, DeviceError};
use butternut_format::units::{index, length};
use butternut_sys::buffer::Buffer;
use std::fmt;

/// All magic numbers are below this offset.
const FRONT_BYTES: usize = 68 << 10;

/// End of the magic number of swap space: the end of the first page, for each page size.
const PAGE_BYTES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const SWAP_MARKS: [&[u8]; 2] = [b"SWAPSPACE2", b"SWAP-SPACE"];

pub(crate) const BTRFS: &str = "a btrfs volume";
pub(crate) const EXT: &str = "an ext2, ext3 or ext4 filesystem";
pub(crate) const XFS: &str = "an XFS filesystem";
pub(crate) const GPT: &str = TableKind::Gpt.what();
const MBR: &str = TableKind::Mbr.what();

/// Magic numbers at fixed offsets. Filesystems are tested before partition tables, because some
/// begin with a boot sector.
const MARKS: [(usize, &[u8], &str); 26] = [
    (65600, b"_BHRfS_M", BTRFS),
    (1080, b"\x53\xef", EXT),
    (0, b"XFSB", XFS),
    (0, b"LUKS\xba\xbe", "an encrypted LUKS volume"),
    (24, b"LVM2 001", "an LVM physical volume"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (1048, b"LVM2 001", "an LVM physical volume"),
    (1560, b"LVM2 001", "an LVM physical volume"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of an MD array"),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"),
    (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9", "a bcachefs filesystem"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS filesystem"),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS filesystem"),
    (0, b"hsqs", "a SquashFS filesystem"),
    (32769, b"CD001", "an ISO 9660 filesystem"),
    (32769, b"BEA01", "a UDF filesystem"),
    (32768, b"JFS1", "a JFS filesystem"),
    (65588, b"ReIsEr", "a ReiserFS filesystem"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (3, b"EXFAT   ", "an exFAT filesystem"),
    (54, b"FAT12   ", "a FAT filesystem"),
    (54, b"FAT16   ", "a FAT filesystem"),
    (82, b"FAT32   ", "a FAT filesystem"),
    (512, b"EFI PART", GPT),
    (4096, b"EFI PART", GPT),
];

/// A magic number that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the format, with its article.
    pub what: &'static str,
    pub offset: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl Signature {
    /// Returns whether it is that of a partition table, and not of a filesystem.
    pub fn is_partition_table(&self) -> bool {
        matches!(self.what, GPT | MBR)
    }

    /// Returns whether it is that of a btrfs volume.
    pub fn is_btrfs(&self) -> bool {
        self.what == BTRFS
    }
}

/// Returns the first magic number on the device, if there is one.
///
/// # Errors
/// The device cannot be read.
pub fn find(device: &dyn Device) -> Result<Option<Signature>, DeviceError> {
    Ok(marked(&front(device, 0)?))
}

/// Returns the bytes from an offset on that [`marked`] needs, with zeros behind the end.
pub(crate) fn front(device: &dyn Device, offset: u64) -> Result<Buffer, DeviceError> {
    let bytes = device.bytes().saturating_sub(offset).min(length(FRONT_BYTES));
    let mut front = Buffer::zeroed(FRONT_BYTES);
    let bytes = u32::try_from(bytes).map_or(FRONT_BYTES, index);
    if bytes > 0 {
        device.read_at(offset, &mut front[..bytes])?;
    }
    Ok(front)
}

/// Returns the first magic number in the bytes at the start of a device.
pub(crate) fn marked(front: &[u8]) -> Option<Signature> {
    let is_at = |offset: usize, mark: &[u8]| front.get(offset..offset + mark.len()) == Some(mark);
    let found = |what, offset| Some(Signature { what, offset: length(offset) });
    for (offset, mark, what) in MARKS {
        if is_at(offset, mark) {
            return found(what, offset);
        }
    }
    for page in PAGE_BYTES {
        for mark in SWAP_MARKS {
            if is_at(page - mark.len(), mark) {
                return found("swap space", page - mark.len());
            }
        }
    }
    if is_at(510, b"\x55\xaa") && is_partition_table(front) {
        return found(MBR, 510);
    }
    None
}

/// Returns whether the status byte of each of the four entries is valid.
fn is_partition_table(front: &[u8]) -> bool {
    [446, 462, 478, 494].iter().all(|at| matches!(front.get(*at), Some(0 | 0x80)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_device::MemoryDevice;

    fn check(offset: usize, mark: &[u8]) -> Option<&'static str> {
        let mut front = vec![0; FRONT_BYTES];
        front[offset..offset + mark.len()].copy_from_slice(mark);
        let found = find(&MemoryDevice::copy_of("m", &front)).unwrap();
        found.map(|signature| signature.what)
    }

    #[test]
    fn every_magic_number_is_found_at_its_offset() {
        for (offset, mark, what) in MARKS {
            assert_eq!(check(offset, mark), Some(what));
        }
        assert_eq!(check(4086, b"SWAPSPACE2"), Some("swap space"));
        assert_eq!(check(65526, b"SWAPSPACE2"), Some("swap space"));
        assert_eq!(check(510, b"\x55\xaa"), Some(MBR));
    }

    #[test]
    fn zeros_boot_code_and_tiny_devices_have_no_signature() {
        assert_eq!(check(0, b""), None);
        let mut sector = [0x17; 512];
        (sector[510], sector[511]) = (0x55, 0xaa);
        assert_eq!(check(0, &sector), None);
        assert_eq!(find(&MemoryDevice::new("m", 0)).unwrap(), None);
        assert_eq!(find(&MemoryDevice::new("m", 1000)).unwrap(), None);
    }
}
