//! `receive` into a directory of a mounted volume: the process of the mount applies the stream, and
//! requests it in parts over its control socket. Root and the owner of the mount may let it do so.
//!
//! 1. The directory is opened once, and stays open until the end: meanwhile the volume is not
//!    unmounted. The process finds it by its inode number, in the mount of the descriptor.
//! 2. The process may change any directory. So the command checks that the user may make something
//!    in this one, and that its mount is writable.
//! 3. Until the end, a file without a name is open for writing in the directory. So the kernel
//!    does not remount the mount read-only meanwhile, as during a receive on the kernel's btrfs. A
//!    kernel before Linux 6.2 makes no such file on a FUSE mount.

use std::fs::File;
use std::os::fd::OwnedFd;

use butternut::receive::StreamEnd;
use rustix::fs::{Access, AtFlags, Mode, OFlags, StatxFlags, accessat, openat, statx};
use rustix::io::Errno;
use serde_json::Value;

use super::input::Input;
use super::interrupt::Interrupt;
use super::{described, kept, note_changed, note_present};
use crate::args::GlobalArgs;
use crate::commands::mounted::directory::MountedDirectory;
use crate::control::receive::{ReceiveEnd, ReceiveRequest, ReceiveResult};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, stderr_line, text};

const COMMAND: &str = "receive";

pub(super) fn run(
    global: &GlobalArgs,
    mounted: &MountedDirectory<'_>,
    is_resumed: bool,
    (input, interrupt): (Input, &Interrupt),
    out: &mut Output,
) -> Outcome {
    if mounted.is_kernels() {
        return Err(mounted.of_kernel("btrfs receive"));
    }
    if !mounted.may_be_own() {
        let shown = mounted.shown();
        let hint = format!("`receive --to-directory {shown}` makes plain directories in it");
        return Err(Failure::new(shown, "is in no mounted btrfs volume").hint(hint));
    }
    let dir = mounted.reopen()?;
    let nameless = nameless_file(&dir).map_err(|errno| mounted.failed(&errno.into()))?;
    // After law 3 holds: the mount stays writable.
    mounted.require_writable()?;
    let allowed = accessat(&dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    allowed.map_err(|errno| mounted.failed(&errno.into()))?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&dir, "", flags, StatxFlags::INO);
    let directory = found.map_err(|errno| mounted.failed(&errno.into()))?.stx_ino;
    let end = match input.end {
        StreamEnd::Input => ReceiveEnd::Input,
        StreamEnd::Command => ReceiveEnd::Command,
    };
    let request = ReceiveRequest { directory, end, is_resumed };
    let Input { name, stream, .. } = input;
    let (result, input_error) = {
        let mut input = stream.into_inner();
        mounted.receive(COMMAND, request, (&mut input, interrupt.received()))?
    };
    // Laws 1 and 3.
    drop((dir, nameless));
    let (failure, is_clean) = match (input_error, &result.failure) {
        // The process names the end of the connection, which the input has caused.
        (Some(error), _) => (Some(Failure::io(name.clone(), &error)), result.unfinished.is_none()),
        (None, Some(why)) => (Some(Failure::new(&*name, text::lines(why))), false),
        (None, None) => (None, false),
    };
    let none_left = is_clean.then(|| "no incomplete subvolume is left".to_owned());
    let hint = result.resumable.map(kept).or(none_left);
    let failure = failure.map(|failure| failure.hint_if(hint));
    report(global, mounted, &name, (&result, failure), out)
}

/// Opens a file without a name in a directory (law 3). Returns `None` where the kernel makes none,
/// and where nothing can be made: on a read-only mount, in a read-only subvolume, which the process
/// refuses by its name, and at a limit of the subvolume of the directory.
fn nameless_file(dir: &File) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(dir, ".", flags, Mode::RUSR | Mode::WUSR) {
        Err(Errno::OPNOTSUPP | Errno::ROFS | Errno::DQUOT | Errno::NOSPC) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Reports the complete subvolumes, also after a failure, which is returned then.
fn report(
    global: &GlobalArgs,
    mounted: &MountedDirectory<'_>,
    name: &str,
    (result, failure): (&ReceiveResult, Option<Failure>),
    out: &mut Output,
) -> Outcome {
    let ReceiveResult { subvolumes, present, changed, unfinished, .. } = result;
    let at = |name: &[u8]| text::escaped(&mounted.joined(name));
    changed.iter().filter(|_| !global.quiet).for_each(|name| note_changed(&at(name)));
    if let Some((name, why)) = unfinished {
        let at = at(name);
        stderr_line(&format!("{at}: the incomplete subvolume cannot be deleted: {why}"));
    }
    if global.verbose && !global.json && *present > 0 {
        note_present(name, *present);
    }
    if subvolumes.is_empty() {
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !global.quiet && *present == 0 {
            stderr_line(&format!("{name}: note: the stream has no subvolume"));
        }
    }
    for subvolume in subvolumes.iter().filter(|_| global.verbose && !global.json) {
        stderr_line(&format!("{}: received", at(&subvolume.name)));
    }
    let changes = subvolumes.iter().map(|one| ("received", mounted.joined(&one.name)));
    let described: Vec<Value> = subvolumes
        .iter()
        .map(|one| described(one.id, &one.name, &one.uuid, one.is_snapshot))
        .collect();
    let reported =
        mounted.finish_with(global, out, changes, |object| object.put("subvolumes", described));
    match failure {
        Some(failure) => Err(failure),
        None => reported,
    }
}
