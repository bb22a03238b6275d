//! IOCTL: lookups of subvolumes that any user may make, by the calls of the kernel's btrfs.
//!
//! | call | caller | effect |
//! |---|---|---|
//! | `GET_SUBVOL_ROOTREF` | any caller | returns the subvolumes directly in this one |
//! | `INO_LOOKUP_USER` | law 2 | returns the name of one of them, and its path from a directory |
//!
//! 1. Both are about the subvolume of the descriptor. The path begins at its directory.
//! 2. `INO_LOOKUP_USER` needs permission to read and to search the directory of the descriptor, and
//!    each one between it and that of the subvolume, as in kernel btrfs; not that one itself. A
//!    directory that is not below that of the descriptor is refused in the same way.
//! 3. Where there are more subvolumes than fit, `GET_SUBVOL_ROOTREF` fails with `EOVERFLOW`, and
//!    returns those that fit, and the id from which the next call continues.
//! 4. Both may read many blocks, so their replies are deferred.

use butternut::{Error, FileId, Filesystem, Follow};
use zerocopy::{FromBytes, IntoBytes};

use crate::connection::protocol::{InHeader, IoctlIn, IoctlOut};
use crate::connection::request::Request;
use crate::door::access::has_permissions;
use crate::door::{Door, Outcome};
use crate::errno::{Errno, ErrnoResult};

const SUBVOLUMES: u32 = 0xd000_943d;
const LOOKUP: u32 = 0xd000_943e;

/// Size of the arguments and results of both calls, in bytes.
const CALL_BYTES: usize = 4096;
/// Maximum number of subvolumes in one reply.
const SUBVOLUMES_MAX: usize = 255;
/// Where the reply has their number.
const COUNT_AT: usize = 4088;
/// Sizes of the name and of the path in the results, in bytes, with their final zero byte.
const NAME_BYTES: usize = 256;
const PATH_BYTES: usize = 3824;

/// To read and to search a directory.
const READ_AND_SEARCH: u16 = 0o5;

impl Door {
    /// Serves a lookup of subvolumes. Returns `None` for every other call.
    pub(super) fn subvolume_lookup(
        &self,
        call: &IoctlIn,
        request: &mut Request<'_>,
    ) -> Option<ErrnoResult<Outcome>> {
        match call.cmd {
            SUBVOLUMES => Some(self.subvolumes_inside(request)),
            LOOKUP => Some(self.look_subvolume_up(request)),
            _ => None,
        }
    }

    fn subvolumes_inside(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let own = self.node(request)?.subvolume;
        let least = first_words::<1>(request)?[0];
        let filesystem = self.filesystem.clone();
        self.reply_deferred_to_user(request, size_of::<IoctlOut>() + CALL_BYTES, move |reply| {
            let mut inside = filesystem.nested_subvolumes(own)?;
            inside.retain(|(id, ..)| *id >= least);
            let is_cut = inside.len() > SUBVOLUMES_MAX;
            inside.truncate(SUBVOLUMES_MAX);
            let next = inside.last().map_or(least, |(id, ..)| id.saturating_add(1));
            let mut bytes = next.as_bytes().to_vec();
            for (id, dir, _) in &inside {
                bytes.extend([*id, *dir].as_bytes());
            }
            bytes.resize(COUNT_AT, 0);
            bytes.extend([u8::try_from(inside.len()).unwrap_or(u8::MAX), 0, 0, 0, 0, 0, 0, 0]);
            let result = if is_cut { -Errno::EOVERFLOW.0 } else { 0 };
            reply.push(&IoctlOut { result, ..IoctlOut::default() })?;
            reply.push_bytes(&bytes)
        })
    }

    fn look_subvolume_up(&self, request: &mut Request<'_>) -> ErrnoResult<Outcome> {
        let from = self.node(request)?;
        let [dir, id] = first_words::<2>(request)?;
        let dir_id = FileId::new(from.subvolume, dir);
        if dir_id.is_subvolume_root() && !from.is_subvolume_root() {
            return Err(Errno::EACCES);
        }
        let caller = request.header;
        let is_checked = self.options.checks_permissions;
        let filesystem = self.filesystem.clone();
        self.reply_deferred_to_user(request, size_of::<IoctlOut>() + CALL_BYTES, move |reply| {
            let mut path = Vec::new();
            if dir_id != from {
                let caller = is_checked.then_some(&caller);
                path = path_between(&filesystem, from, dir_id, caller).map_err(as_kernel)?;
            }
            if path.len() >= PATH_BYTES {
                return Err(Errno::ENAMETOOLONG);
            }
            let found = match filesystem.subvolume(id) {
                Ok(found) if found.parent == Some(from.subvolume) => found,
                Ok(_) | Err(Error::NoSubvolume { .. }) => return Err(Errno::ENOENT),
                Err(error) => return Err(error.into()),
            };
            if found.dir != dir {
                return Err(Errno::EINVAL);
            }
            let mut name = found.name;
            name.truncate(NAME_BYTES - 1);
            name.resize(NAME_BYTES, 0);
            path.resize(PATH_BYTES, 0);
            reply.push(&IoctlOut::default())?;
            reply.push(&[dir, id])?;
            reply.push_bytes(&name)?;
            reply.push_bytes(&path)
        })
    }
}

/// Returns the path from directory `from` to `dir` in its subvolume, with a final `/`, and checks
/// the permissions of a caller on the way (law 2).
fn path_between(
    filesystem: &Filesystem,
    from: FileId,
    dir: FileId,
    caller: Option<&InHeader>,
) -> ErrnoResult<Vec<u8>> {
    let path_of = |id: FileId| filesystem.first_path(id)?.ok_or(Errno::ENOENT);
    let whole = path_of(dir)?;
    let mut at = dir;
    // Each directory on the way adds a name and a slash to the path.
    for _ in 0..PATH_BYTES / 2 {
        if at.is_subvolume_root() {
            return Err(Errno::EACCES);
        }
        at = match filesystem.parent(at) {
            // No subvolume is in a file, but the kernel says first that it is not below.
            Err(Error::NotDirectory) if at == dir => {
                let end = whole.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                let root = filesystem.with_subvolume(from.subvolume);
                root.resolve(&whole[..end], Follow::NotLast)?
            }
            above => above?,
        };
        if let Some(caller) = caller {
            has_permissions(filesystem, caller, at, READ_AND_SEARCH)?;
        }
        if at == from {
            let above = path_of(from)?;
            let below = whole.strip_prefix(&above[..]).ok_or(Errno::ENOENT)?;
            let mut path = below.strip_prefix(b"/").unwrap_or(below).to_vec();
            path.push(b'/');
            return Ok(path);
        }
    }
    Err(Errno::ENAMETOOLONG)
}

fn as_kernel(errno: Errno) -> Errno {
    match errno {
        Errno::ESTALE => Errno::ENOENT,
        Errno::E2BIG => Errno::ENAMETOOLONG,
        errno => errno,
    }
}

/// Takes the arguments, and returns the words at their beginning.
fn first_words<const N: usize>(request: &mut Request<'_>) -> ErrnoResult<[u64; N]> {
    let bytes = request.data(u32::try_from(CALL_BYTES).map_err(|_| Errno::EIO)?)?;
    let words = <[u64; N]>::read_from_prefix(bytes).map_err(|_| Errno::EIO)?;
    Ok(words.0)
}
