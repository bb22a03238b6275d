//! Telling something of each of several paths.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::failure::{Done, Failure, Outcome};
use crate::flags::GlobalArgs;
use crate::output::json::Object;
use crate::output::{Output, json, say};

/// Shows what `look` finds of each path, under `--json` as one list. Where it fails, that is said,
/// and the next path is looked at.
pub(super) fn tell_each<T>(
    global: &GlobalArgs,
    paths: &[OsString],
    out: &mut Output,
    look: impl Fn(&OsString) -> Result<T, Failure>,
    show: impl Fn(&T, &mut Output) -> io::Result<()>,
    as_json: impl Fn(&T) -> Object,
) -> Outcome {
    let mut list = json::List::default();
    let mut done = Done::Well;
    for path in paths {
        match look(path) {
            Ok(found) if global.json => list.push(out, as_json(&found))?,
            Ok(found) => show(&found, out)?,
            Err(failure) => {
                out.flush()?;
                say(&failure.to_string());
                done = Done::WithFailures;
            }
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(done)
}
