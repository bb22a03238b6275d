//! IOCTL: fs-verity, by the calls of the kernel.
//!
//! | call | effect |
//! |---|---|
//! | `ENABLE` | seals a file |
//! | `MEASURE` | returns the digest of a sealed file |
//! | `READ_METADATA`, sized | returns a part of its tree, descriptor or signature |
//!
//! 1. The kernel (since 6.10) copies the salt and the signature behind the argument of `ENABLE`,
//!    and as many bytes of `MEASURE` as its caller has room for. It checks nothing. Before 6.10 a
//!    call with a salt or a signature is refused, and a file cannot be measured.
//! 2. The errors and their order are those of the kernel: the arguments, the permission to write to
//!    the file, its flags and kind, a read-only mount or subvolume, handles that are open for
//!    writing. The caller's own handle must be open for reading only.
//! 3. The kernel keeps what was written to an open file or its mapping, and has sent everything
//!    when it releases the handle. So no handle is open for writing while a file is being sealed
//!    ([`SealGates`](crate::handles::SealGates)).
//! 4. The call may take long, so its reply is deferred, and it ends between two parts when its
//!    caller is interrupted or the mount ends: then the file is as it was.
//! 5. As in the kernel's btrfs, `FS_IOC_READ_VERITY_METADATA` is no call of this filesystem: it
//!    names memory of its caller, which FUSE does not pass on. The sized call has its data behind
//!    it ([`verity_calls`](butternut_sys::verity_calls)).
//! 6. The seals of small files do not wait for those of large ones
//!    ([`user_calls`](super::user_calls)). The size is that at the call: if the file has grown
//!    above the limit when its seal begins, it was being written to, and the call fails with
//!    `ETXTBSY`. The files of users are hashed by threads of their own
//!    ([`seal_hashers`](super::seal_hashers)).

use std::sync::Arc;

use butternut::format::verity::{SALT_BYTES_MAX, SIGNATURE_BYTES_MAX};
use butternut::server::FilesystemExt;
use butternut::{AttributeFlags, FileKind, VerityHash, VerityMetadata, VerityOptions};
use butternut_sys::verity_calls::{ENABLE, MEASURE, READ_SIZED, READ_SIZED_BYTES};

use crate::connection;
use crate::connection::protocol::{EnableVerity, IoctlIn, IoctlOut, VerityDigest, VerityRead};
use crate::connection::reply::Reply;
use crate::connection::request::Request;
use crate::door::user_calls::SHORT_SEAL_BYTES;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

const WRITE: u16 = 0o2;

impl Door {
    /// Serves a call of fs-verity. Returns `None` for every other call.
    pub(super) fn verity_call(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> Option<ErrnoResult<Outcome>> {
        Some(match call.cmd {
            ENABLE => self.enable_verity(call, request),
            MEASURE => self.measure_verity(call, request, reply).map(|()| Outcome::Reply),
            READ_SIZED => self.read_verity(call, request, reply).map(|()| Outcome::Reply),
            _ => return None,
        })
    }

    /// Checks the call (law 2), and seals the file.
    fn enable_verity(&self, call: &IoctlIn, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let options = options(&request.take()?, call, request)?;
        let id = self.node(request)?;
        let caller = self.checked_caller(request);
        let stat = self.filesystem.stat(id)?;
        caller.may_access(&self.filesystem, id, WRITE)?;
        if self.filesystem.attribute_flags(id)?.contains(AttributeFlags::APPEND) {
            return Err(Errno::EPERM);
        }
        match stat.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink
            | FileKind::CharDevice
            | FileKind::BlockDevice
            | FileKind::Fifo
            | FileKind::Socket => return Err(Errno::EINVAL),
        }
        self.filesystem.check_writable(id)?;
        let handle = self.find(request, call.fh)?;
        if !handle.is_readable {
            return Err(Errno::EBADF);
        }
        if handle.is_writable {
            return Err(Errno::ETXTBSY);
        }
        let filesystem = self.filesystem.clone();
        let gates = self.handles.seal_gates();
        let unsent = self.unsent_files().file(id);
        let (device, node) = (Arc::clone(request.device), request.header.nodeid);
        let (interrupts, unique) = (self.interrupts.clone(), request.header.unique);
        // Law 6.
        let is_short = stat.size <= SHORT_SEAL_BYTES;
        let calls = if is_short { &self.user_calls } else { &self.long_seals };
        let (hashers, user) = (self.seal_hashers.clone(), self.counted_user(request));
        let bytes = size_of::<IoctlOut>();
        // Law 4.
        self.reply_deferred_within(calls, request, bytes, move |reply| {
            let waiting = interrupts.begin(unique);
            caller.may_change()?;
            // Law 3.
            let gate = gates.begin(id)?;
            unsent.map_or(Ok(()), |file| file.write_back(&device))?;
            let file = filesystem.open_file(id)?;
            let has_grown = || is_short && file.len() > SHORT_SEAL_BYTES;
            let goes_on = || !has_grown() && waiting.goes_on();
            let hash = |part| hashers.hash(user, part);
            let sealed = file.enable_verity_by(&options, &goes_on, &hash);
            drop(gate);
            if sealed.is_err() && has_grown() {
                return Err(Errno::ETXTBSY);
            }
            sealed?;
            // Also the pages that the kernel has: nothing has verified them.
            connection::invalidate_pages(&device, node);
            reply.push(&IoctlOut::default())
        })
    }

    /// Replies with the digest of a file, if the caller has room for it.
    fn measure_verity(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let room: VerityDigest = request.take()?;
        let id = self.node(request)?;
        if self.filesystem.stat(id)?.kind != FileKind::File {
            return Err(Errno::ENODATA);
        }
        let measured = self.filesystem.open_file(id)?.measure_verity()?;
        let digest = &measured.digest;
        let size = u16::try_from(digest.len()).map_err(|_| Errno::EOVERFLOW)?;
        if room.digest_size < size {
            return Err(Errno::EOVERFLOW);
        }
        let whole = size_of::<VerityDigest>() + digest.len();
        if usize::try_from(call.out_size).unwrap_or(0) < whole {
            // The kernel does not pass the digest on (law 1).
            return Err(Errno::EOPNOTSUPP);
        }
        let digest_algorithm = measured.hash.number().into();
        reply.push(&IoctlOut::default())?;
        reply.push(&VerityDigest { digest_algorithm, digest_size: size })?;
        reply.push_bytes(digest)
    }

    /// Replies with a part of what is stored for a sealed file (law 5).
    fn read_verity(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
        reply: &mut Reply,
    ) -> ErrnoResult<()> {
        let read: VerityRead = request.take()?;
        let what = match read.metadata_type {
            1 => VerityMetadata::MerkleTree,
            2 => VerityMetadata::Descriptor,
            3 => VerityMetadata::Signature,
            _ => return Err(Errno::EINVAL),
        };
        let room = READ_SIZED_BYTES - size_of::<VerityRead>();
        if read.reserved != 0 || usize::try_from(call.out_size) != Ok(READ_SIZED_BYTES) {
            return Err(Errno::EINVAL);
        }
        let bytes = usize::try_from(read.length).unwrap_or(usize::MAX).min(room);
        let mut data = vec![0; bytes];
        let file = self.filesystem.open_file(self.node(request)?)?;
        let filled = file.read_verity_metadata(what, read.offset, &mut data)?;
        let length = u64::try_from(filled).unwrap_or(0);
        reply.push(&IoctlOut::default())?;
        reply.push(&VerityRead { length, ..read })?;
        reply.push_bytes(&data[..filled])
    }
}

/// Returns what an argument means, in the order in which the kernel checks it.
fn options(
    argument: &EnableVerity,
    call: &IoctlIn,
    request: &mut Request<'_>,
) -> ErrnoResult<VerityOptions> {
    let EnableVerity { version, salt_size, sig_size, reserved1, reserved2, .. } = *argument;
    let is_zero = reserved1 == 0 && reserved2 == [0; 11];
    if version != 1 || !is_zero || !argument.block_size.is_power_of_two() {
        return Err(Errno::EINVAL);
    }
    let exceeds = |bytes: u32, most: usize| usize::try_from(bytes).is_ok_and(|it| it > most);
    if exceeds(salt_size, SALT_BYTES_MAX) || exceeds(sig_size, SIGNATURE_BYTES_MAX) {
        return Err(Errno::EMSGSIZE);
    }
    let behind = u64::from(salt_size) + u64::from(sig_size);
    if u64::from(call.in_size) < size_of::<EnableVerity>() as u64 + behind {
        // Law 1.
        return Err(Errno::EOPNOTSUPP);
    }
    let (salt, signature) = (request.data(salt_size)?, request.data(sig_size)?);
    let number = u8::try_from(argument.hash_algorithm).map_err(|_| Errno::EINVAL)?;
    let hash = VerityHash::check(number).map_err(|_| Errno::EINVAL)?;
    let block_bytes = argument.block_size;
    if !matches!(block_bytes, 1024 | 2048 | 4096) {
        return Err(Errno::EINVAL);
    }
    let options = VerityOptions::default().hash(hash).block_bytes(block_bytes);
    Ok(options.salt(salt).signature(signature))
}
