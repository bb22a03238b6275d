//! Output for each of several paths.

use std::ffi::OsString;
use std::io::{self, Write};

use crate::args::GlobalArgs;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, stderr_line};

/// Prints what `look` returns for each path; with `--json`, prints one list. A failure is reported,
/// and the next path follows.
pub(super) fn for_each_path<T>(
    global: &GlobalArgs,
    paths: &[OsString],
    out: &mut Output,
    look: impl Fn(&OsString) -> Result<T, Failure>,
    show: impl Fn(&T, &mut Output) -> io::Result<()>,
    as_json: impl Fn(&T) -> Object,
) -> Outcome {
    let mut list = json::List::default();
    let mut done = Completion::Success;
    let mut print_all = || -> io::Result<()> {
        for path in paths {
            match look(path) {
                Ok(found) if global.json => list.push(out, as_json(&found))?,
                Ok(found) => show(&found, out)?,
                Err(failure) => {
                    // A failed write is returned by the next one.
                    out.flush().unwrap_or_default();
                    stderr_line(&failure.to_string());
                    done = Completion::PartialFailure;
                }
            }
        }
        if global.json { std::mem::take(&mut list).end(out) } else { Ok(()) }
    };
    let printed = print_all();
    done.after(printed.map_err(Failure::from))
}
