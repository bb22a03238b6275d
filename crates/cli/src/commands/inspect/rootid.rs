//! `inspect rootid`: prints the id of the subvolume that contains a path.

use std::io::Write;

use butternut::Follow;

use crate::args::{GlobalArgs, RootidArgs};
use crate::failure::{Completion, Outcome};
use crate::output::{Output, json};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &RootidArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_arg(global, &args.at.volume)?;
    let id = opened.resolve(&args.at.path, Follow::Last)?;
    if global.json {
        json::document(out, json::Object::new().put("subvolume", id.subvolume_id()))?;
    } else {
        writeln!(out, "{}", id.subvolume_id())?;
    }
    Ok(Completion::Success)
}
