//! `trim`: tells the devices which of their space is free.

use std::io::Write;

use super::change::Change;
use crate::failure::{Done, Outcome};
use crate::flags::{GlobalArgs, TrimArgs};
use crate::options;
use crate::output::json::Object;
use crate::output::size::{Units, pretty};
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &TrimArgs, out: &mut Output) -> Outcome {
    let minimum = options::bytes("--minimum", &args.minimum)?;
    let mut change = Change::open_words(global, &args.volume.volume)?;
    let trimmed = change.filesystem().trim(minimum).map_err(|error| change.whole(&error))?;
    change.commit()?;
    if global.json {
        let object = Object::new().put("volume", change.volume()).put("bytes", trimmed);
        json::document(out, object)?;
    } else if !global.quiet {
        let size = pretty(trimmed, Units::Binary);
        writeln!(out, "{}: {size} ({trimmed} bytes) trimmed", change.volume())?;
    }
    Ok(Done::Well)
}
