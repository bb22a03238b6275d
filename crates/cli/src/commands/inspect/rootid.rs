//! `inspect rootid`: the id of the subvolume that a path is in.

use std::io::Write;

use butternut::Follow;

use crate::failure::{Done, Outcome};
use crate::flags::{GlobalArgs, RootidArgs};
use crate::options::Opened;
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &RootidArgs, out: &mut Output) -> Outcome {
    let opened = Opened::one(global, &args.at.volume)?;
    let id = opened.resolve(&args.at.path, Follow::Last)?;
    if global.json {
        json::document(out, json::Object::new().put("subvolume", id.subvolume_id()))?;
    } else {
        writeln!(out, "{}", id.subvolume_id())?;
    }
    Ok(Done::Well)
}
