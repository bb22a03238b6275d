//! `filesystem sync`: brings everything down on the devices.
//!
//! A volume that nobody has open needs that only where files lost their names without being
//! deleted, for a crash: they go now. A directory is that of something mounted, and the system is
//! asked.

use std::fs::File;
use std::path::Path;

use rustix::fs::syncfs;

use super::super::change::Change;
use crate::failure::{Done, Failure, Outcome};
use crate::flags::{GlobalArgs, SyncArgs};
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
        return Ok(Done::Well);
    }
    let change = Change::open_words(global, &args.volume)?;
    change.finish(global, out, |object| object)
}
