//! `receive` into a directory of a mounted volume: the process of the mount applies the stream, and
//! requests it in parts over its control socket. Root and the owner of the mount may let it do so.
//!
//! 1. The directory is opened once, and stays open until the end: meanwhile the volume is not
//!    unmounted. The process finds it by its inode number, in the mount of the descriptor.
//! 2. The process may change any directory. So the command checks that the user may make something
//!    in this one, and that its mount is writable.

use butternut::receive::StreamEnd;
use rustix::fs::{Access, AtFlags, StatxFlags, accessat, statx};
use serde_json::Value;

use super::described;
use super::input::Input;
use crate::args::GlobalArgs;
use crate::commands::mounted::directory::MountedDirectory;
use crate::control::receive::{ReceiveEnd, ReceiveRequest, ReceiveResult};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, stderr_line, text};

const COMMAND: &str = "receive";

pub(super) fn run(
    global: &GlobalArgs,
    mounted: &MountedDirectory<'_>,
    input: Input,
    out: &mut Output,
) -> Outcome {
    if mounted.is_kernels() {
        return Err(mounted.of_kernel("btrfs receive"));
    }
    mounted.require_writable()?;
    let dir = mounted.reopen()?;
    let allowed = accessat(&dir, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
    allowed.map_err(|errno| mounted.failed(&errno.into()))?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(&dir, "", flags, StatxFlags::INO);
    let directory = found.map_err(|errno| mounted.failed(&errno.into()))?.stx_ino;
    let end = match input.end {
        StreamEnd::Input => ReceiveEnd::Input,
        StreamEnd::Command => ReceiveEnd::Command,
    };
    let request = ReceiveRequest { directory, end };
    let Input { name, stream, .. } = input;
    let received = mounted.receive(COMMAND, request, &mut stream.into_inner())?;
    // Law 1.
    drop(dir);
    let result = received.map_err(|error| {
        Failure::io(name.clone(), &error).hint("the incomplete subvolume is deleted")
    })?;
    report(global, mounted, &name, &result, out)
}

/// Reports the complete subvolumes, also after a failure, which is returned then.
fn report(
    global: &GlobalArgs,
    mounted: &MountedDirectory<'_>,
    name: &str,
    result: &ReceiveResult,
    out: &mut Output,
) -> Outcome {
    let ReceiveResult { subvolumes, failure, unfinished } = result;
    let at = |name: &[u8]| text::escaped(&mounted.joined(name));
    if let Some((name, why)) = unfinished {
        let at = at(name);
        stderr_line(&format!("{at}: the incomplete subvolume cannot be deleted: {why}"));
    }
    let failure = failure.as_ref().map(|why| Failure::new(name, text::lines(why)));
    if subvolumes.is_empty() {
        if let Some(failure) = failure {
            return Err(failure);
        }
        if !global.quiet {
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
