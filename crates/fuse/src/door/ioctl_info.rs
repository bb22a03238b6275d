//! IOCTL: what the volume and its devices are, by the calls of the kernel's btrfs.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | `FS_INFO` | any caller | returns the ids, the sizes and the checksum algorithm of the volume |
//! | `DEV_INFO` | any caller | returns the sizes and the path of a device |
//!
//! 1. The number of `FS_INFO` says that it returns data only, so the kernel does not copy the flags
//!    in its arguments, which name the optional fields that the caller wants. All of them are
//!    returned, with their flags: a caller that did not want one does not look at it. The memory of
//!    the caller is not read for them: it may be a mapping of a file of this mount.
//! 2. The path of a device is the one that was mounted: that of an image file, where the kernel's
//!    btrfs has the one of a loop device.
//! 3. Devices of a seed volume are found by `DEV_INFO`, and are not counted by `FS_INFO`.

use butternut::DeviceInfo;
use butternut::server::FilesystemExt;
use zerocopy::{FromBytes, IntoBytes};

use crate::connection::protocol::{IoctlIn, IoctlOut};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::Door;
use crate::errno::{Errno, ErrnoResult};

const FS_INFO: u32 = 0x8400_941f;
const DEV_INFO: u32 = 0xd000_941e;

/// Size of the results, in bytes.
const FS_INFO_BYTES: usize = 1024;
const DEV_INFO_BYTES: u32 = 4096;
/// Flags of `FS_INFO`: the optional fields that are returned.
const CHECKSUM: u64 = 1;
const GENERATION: u64 = 1 << 1;
const METADATA_UUID: u64 = 1 << 2;

const SECTOR_BYTES: u32 = 4096;
/// Where `DEV_INFO` has the path of the device, and the size of it with a final zero byte.
const PATH_AT: usize = 3072;
const PATH_BYTES: usize = 1024;

impl Door {
    /// Serves a call about the volume and its devices. Returns `None` for every other call.
    pub(super) fn info_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Option<ErrnoResult<()>> {
        match call.cmd {
            FS_INFO => Some(self.volume_info(reply)),
            DEV_INFO => Some(self.device_info(request, reply)),
            _ => None,
        }
    }

    fn volume_info(&self, reply: &mut Reply) -> ErrnoResult<()> {
        let super_block = self.filesystem.super_block();
        let devices = self.filesystem.devices();
        let own = devices.iter().filter(|device| !device.seed);
        let (count, highest) =
            own.fold((0_u64, 0), |(count, highest), device| (count + 1, device.id.max(highest)));
        let mut info = [highest, count].as_bytes().to_vec();
        info.extend(super_block.fsid());
        info.extend([super_block.node_bytes(), SECTOR_BYTES, SECTOR_BYTES].as_bytes());
        let csum_bytes = u16::try_from(super_block.csum().bytes()).unwrap_or(0);
        info.extend([super_block.raw().csum_type.get(), csum_bytes].as_bytes());
        // Law 1.
        info.extend((CHECKSUM | GENERATION | METADATA_UUID).as_bytes());
        info.extend(self.filesystem.committed_generation().as_bytes());
        info.extend(super_block.metadata_uuid());
        // The rest is reserved.
        info.resize(FS_INFO_BYTES, 0);
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(&info)
    }

    fn device_info(&self, request: &mut Request<'_>, reply: &mut Reply) -> ErrnoResult<()> {
        let arguments = request.data(DEV_INFO_BYTES)?;
        let (id, rest) = u64::read_from_prefix(arguments).map_err(|_| Errno::EIO)?;
        let (uuid, _) = <[u8; 16]>::read_from_prefix(rest).map_err(|_| Errno::EIO)?;
        let is_it =
            |device: &DeviceInfo| device.id == id && (uuid == [0; 16] || device.uuid == uuid);
        let devices = self.filesystem.devices();
        let device = devices.into_iter().find(is_it).ok_or(Errno::ENODEV)?;
        let mut info = device.id.as_bytes().to_vec();
        info.extend(device.uuid);
        info.extend([device.allocated_bytes, device.total_bytes].as_bytes());
        info.extend(self.filesystem.super_block().fsid());
        info.resize(PATH_AT, 0);
        let mut path = device.path.unwrap_or_default().into_bytes();
        path.truncate(PATH_BYTES - 1);
        path.resize(PATH_BYTES, 0);
        info.extend(path);
        reply.push(&IoctlOut::default())?;
        reply.push_bytes(&info)
    }
}
