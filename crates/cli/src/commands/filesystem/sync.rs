//! `filesystem sync`: commits all changes to the devices.
//!
//! For a volume that is not mounted, this deletes the orphan files that a crash has left. For a
//! directory, it calls syncfs(2) on the mounted filesystem that contains it.

use std::fs::File;
use std::path::Path;

use rustix::fs::syncfs;

use super::super::transaction::Transaction;
use crate::args::{GlobalArgs, SyncArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &SyncArgs, out: &mut Output) -> Outcome {
    if let [word] = args.volume.as_slice()
        && Path::new(word).is_dir()
    {
        let shown = word.display().to_string();
        let failed = |error: std::io::Error| Failure::io(shown.clone(), &error);
        let directory = File::open(word).map_err(failed)?;
        syncfs(&directory).map_err(|error| failed(error.into()))?;
        if global.json {
            json::document(out, Object::new().put("directory", shown))?;
        }
        return Ok(Completion::Success);
    }
    let transaction = Transaction::open_args(global, &args.volume)?;
    transaction.finish(global, out, |object| object)
}
