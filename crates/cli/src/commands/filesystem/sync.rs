//! `filesystem sync`: commits all changes to the devices.
//!
//! For a volume that is not mounted, this replays the log tree and deletes the orphans that a crash
//! has left. For a directory, it calls syncfs(2) on the mounted filesystem that contains it. FUSE
//! passes the call on to the process of a Butternut mount only with `-o blkdev`, so the command
//! lets that process commit as well.

use std::fs::File;
use std::io;
use std::path::Path;

use butternut_fuse::is_own_type;
use butternut_sys::mounts;
use rustix::fs::syncfs;

use super::super::transaction::Transaction;
use super::super::umount::{self, Committed};
use crate::args::{GlobalArgs, SyncArgs};
use crate::control;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::notes::Notes;
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &SyncArgs, out: &mut Output) -> Outcome {
    if let [word] = args.volume.as_slice()
        && let shown = word.display().to_string()
        && let Some(synced) = Notes::of(global).if_slow(&shown, || sync_directory(Path::new(word)))
    {
        synced.map_err(|error| Failure::io(shown.clone(), &error))?;
        if global.json {
            json::document(out, Object::new().put("directory", shown))?;
        }
        return Ok(Completion::Success);
    }
    let transaction = Transaction::open_args(global, &args.volume)?;
    transaction.finish(global, out, |object| object)
}

/// Syncs the filesystem of a directory. Returns `None` for any other path.
pub(crate) fn sync_directory(path: &Path) -> Option<io::Result<()>> {
    path.is_dir().then(|| sync_mounted(path))
}

fn sync_mounted(directory: &Path) -> io::Result<()> {
    let device = control::device_number(directory)?;
    let mounts = mounts::read_own_of_device(device)?;
    if mounts.iter().any(|mount| is_own_type(&mount.kind)) {
        return match umount::commit(directory)? {
            Committed::All => Ok(()),
            Committed::Nothing => Err(io::Error::other("the volume was shut down")),
        };
    }
    Ok(syncfs(File::open(directory)?)?)
}
