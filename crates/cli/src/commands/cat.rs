//! `cat`: the bytes of files.
//!
//! A part that cannot be read ends its file, is said, and the next file goes on; the bytes before
//! it have been printed.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;

use butternut::{Error, File, Follow};

use crate::failure::{Done, Failure, Outcome, chain};
use crate::flags::{CatArgs, GlobalArgs};
use crate::options::{self, Opened};
use crate::output::{Output, base64, json, say, text};

/// Bytes per read: whole extents at a time, and a multiple of 3 for base64.
const PIECE_BYTES: usize = 3 << 20;

/// Why the bytes of a file ended early.
enum Stop {
    Reading(u64, Box<Error>),
    Writing(io::Error),
}

pub(crate) fn run(global: &GlobalArgs, args: &CatArgs, out: &mut Output) -> Outcome {
    let start = options::bytes("--offset", &args.offset)?;
    let length = match &args.length {
        Some(typed) => options::bytes("--length", typed)?,
        None => u64::MAX,
    };
    let opened = Opened::one(global, &args.volume)?;
    let mut done = Done::Well;
    let mut documents = 0;
    for path in &args.paths {
        let printed = open(&opened, path).and_then(|file| {
            let end = start.saturating_add(length).min(file.size()).max(start);
            let stopped = if global.json {
                documents += 1;
                let separator = if documents == 1 { "[\n" } else { ",\n" };
                out.write_all(separator.as_bytes())?;
                print_json(out, path, &file, start..end)
            } else {
                copy(&file, start..end, &mut |piece| out.write_all(piece))
            };
            match stopped {
                Ok(()) => Ok(()),
                Err(Stop::Writing(error)) => Err(error.into()),
                Err(Stop::Reading(at, error)) => {
                    out.flush()?;
                    Err(Failure::of(format!("{}: at byte {at}", path.display()), &error))
                }
            }
        });
        match printed {
            Ok(()) => {}
            Err(Failure::Closed) => return Err(Failure::Closed),
            Err(failure) => {
                say(&failure.to_string());
                done = Done::WithFailures;
            }
        }
    }
    if global.json {
        out.write_all(if documents == 0 { b"[]\n" } else { b"\n]\n" })?;
    }
    Ok(done)
}

fn open(opened: &Opened, path: &OsString) -> Result<File, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let shown = text::escaped(&text::bytes(path));
    opened.filesystem.open_file(id).map_err(|error| Failure::of(shown, &error))
}

/// Hands the bytes of `range` to `sink` in pieces.
fn copy(
    file: &File,
    range: Range<u64>,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), Stop> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let read = file
            .read_at(at, &mut piece[..left])
            .map_err(|error| Stop::Reading(at, Box::new(error)))?;
        if read == 0 {
            break;
        }
        sink(&piece[..read]).map_err(Stop::Writing)?;
        at += read as u64;
    }
    Ok(())
}

/// `{"path", "offset", "data"}` with the bytes in base64, and `"error"` where they ended early.
fn print_json(
    out: &mut Output,
    path: &OsString,
    file: &File,
    range: Range<u64>,
) -> Result<(), Stop> {
    let writing = Stop::Writing;
    let head = json::Object::new().name("path", &text::bytes(path)).put("offset", range.start);
    let head = serde_json::to_string(&head).map_err(|error| writing(error.into()))?;
    write!(out, "  {},\"data\":\"", head.trim_end_matches('}')).map_err(writing)?;
    let stopped = copy(file, range, &mut |piece| base64::write(out, piece));
    let tail = match &stopped {
        Err(Stop::Reading(_, error)) => {
            format!("\",\"error\":{}}}", serde_json::Value::from(chain(error)))
        }
        Ok(()) | Err(Stop::Writing(_)) => "\"}".to_owned(),
    };
    out.write_all(tail.as_bytes()).map_err(Stop::Writing)?;
    stopped
}
