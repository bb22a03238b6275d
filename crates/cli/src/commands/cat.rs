//! `cat`: prints the contents of files.
//!
//! A read error ends the output of a file after the bytes before it, and is reported. The command
//! continues with the next file. Where the reader of the output ends before its end, the status is
//! that of a program that SIGPIPE has ended: a part of a file is not the file.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;

use butternut::{Error, File, Follow};

use crate::args::{CatArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome, chain};
use crate::output::{Output, base64, json, stderr_line, text};
use crate::volume::OpenVolume;

/// Bytes per read: a multiple of whole compressed extents (128 KiB), and of 3 for base64.
const READ_BYTES: usize = 3 << 20;

/// The exit status that a shell shows for a program that SIGPIPE has ended.
const SIGPIPE_STATUS: u8 = 128 + 13;

/// Why the output of a file ended early. A read error comes with its file offset.
enum CopyError {
    Read(u64, Box<Error>),
    Write(io::Error),
}

pub(crate) fn run(global: &GlobalArgs, args: &CatArgs, out: &mut Output) -> Outcome {
    let start = crate::args::parse_bytes("--offset", &args.offset)?;
    let length = match &args.length {
        Some(typed) => crate::args::parse_bytes("--length", typed)?,
        None => u64::MAX,
    };
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let mut done = Completion::Success;
    let mut documents = 0;
    for path in &args.paths {
        let printed = open(&opened, path).and_then(|file| {
            let end = start.saturating_add(length).min(file.len()).max(start);
            let stopped = if global.json {
                documents += 1;
                let separator = if documents == 1 { "[\n" } else { ",\n" };
                out.write_all(separator.as_bytes())?;
                print_json(out, path, &file, start..end)
            } else {
                copy(&file, start..end, &mut |buffer| out.write_all(buffer))
            };
            match stopped {
                Ok(()) => Ok(()),
                Err(CopyError::Write(error)) => Err(error.into()),
                Err(CopyError::Read(at, error)) => {
                    // A failed write is returned by the next one.
                    out.flush().unwrap_or_default();
                    Err(Failure::of(format!("{}: at byte {at}", path.display()), &error))
                }
            }
        });
        match printed {
            Ok(()) => {}
            Err(Failure::StdoutClosed) => return Ok(cut_short(done)),
            Err(failure) => {
                stderr_line(&failure.to_string());
                done = Completion::PartialFailure;
            }
        }
    }
    let end: &[u8] = match (global.json, documents) {
        (false, _) => b"",
        (true, 0) => b"[]\n",
        (true, _) => b"\n]\n",
    };
    match out.write_all(end).and_then(|()| out.flush()).map_err(Failure::from) {
        Err(Failure::StdoutClosed) => Ok(cut_short(done)),
        printed => printed.map(|()| done),
    }
}

/// Returns the completion of a command whose output was not read to its end.
fn cut_short(done: Completion) -> Completion {
    if done == Completion::Success { Completion::Status(SIGPIPE_STATUS) } else { done }
}

fn open(opened: &OpenVolume, path: &OsString) -> Result<File, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let shown = text::escaped(&text::bytes(path));
    opened.filesystem.open_file(id).map_err(|error| Failure::of(shown, &error))
}

/// Passes the bytes of `range` to `sink`, at most [`READ_BYTES`] at a time.
fn copy(
    file: &File,
    range: Range<u64>,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), CopyError> {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(READ_BYTES).min(READ_BYTES);
        let read = file
            .read_at(at, &mut buffer[..left])
            .map_err(|error| CopyError::Read(at, Box::new(error)))?;
        if read == 0 {
            break;
        }
        sink(&buffer[..read]).map_err(CopyError::Write)?;
        at += read as u64;
    }
    Ok(())
}

/// Prints `{"path", "offset", "data"}` with the data in base64, and `"error"` after a read error.
fn print_json(
    out: &mut Output,
    path: &OsString,
    file: &File,
    range: Range<u64>,
) -> Result<(), CopyError> {
    let writing = CopyError::Write;
    let head = json::Object::new().name("path", &text::bytes(path)).put("offset", range.start);
    let head = serde_json::to_string(&head).map_err(|error| writing(error.into()))?;
    write!(out, "  {},\"data\":\"", head.trim_end_matches('}')).map_err(writing)?;
    let stopped = copy(file, range, &mut |buffer| base64::write(out, buffer));
    let tail = match &stopped {
        Err(CopyError::Read(_, error)) => {
            format!("\",\"error\":{}}}", serde_json::Value::from(chain(error)))
        }
        Ok(()) | Err(CopyError::Write(_)) => "\"}".to_owned(),
    };
    out.write_all(tail.as_bytes()).map_err(CopyError::Write)?;
    stopped
}
