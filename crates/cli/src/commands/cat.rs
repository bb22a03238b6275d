//! `cat`: prints the contents of files.
//!
//! A read error ends the output of a file after the bytes before it, and is reported. The command
//! continues with the next file. Where the reader of the output ends before its end, the status is
//! that of a program that SIGPIPE has ended: a part of a file is not the file.

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;

use butternut::{Error, Follow};

use super::mounted::files::{MountedFiles, OpenFile};
use super::mounted::usage;
use crate::args::{CatArgs, GlobalArgs};
use crate::failure::{Completion, Failure, Outcome, SIGPIPE_STATUS, chain, io_text};
use crate::output::{Output, base64, json, stderr_line, text};
use crate::volume::OpenVolume;

/// Bytes per read: a multiple of whole compressed extents (128 KiB), and of 3 for base64.
const READ_BYTES: usize = 3 << 20;

/// Why the output of a file ended early. A read error comes with its file offset.
enum CopyError {
    Read(u64, ReadError),
    Write(io::Error),
}

/// Why a file cannot be read: of a volume that is not mounted, and of a mounted one.
enum ReadError {
    Library(Box<Error>),
    Io(io::Error),
}

/// A file that is printed.
enum Source {
    Volume(butternut::File),
    Mounted(OpenFile),
}

impl Source {
    fn len(&self) -> u64 {
        match self {
            Self::Volume(file) => file.len(),
            Self::Mounted(file) => file.len(),
        }
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<usize, ReadError> {
        match self {
            Self::Volume(file) => {
                file.read_at(at, into).map_err(|error| ReadError::Library(Box::new(error)))
            }
            Self::Mounted(file) => file.read_at(at, into).map_err(ReadError::Io),
        }
    }
}

impl ReadError {
    fn failure(&self, what: String) -> Failure {
        match self {
            Self::Library(error) => Failure::of(what, error),
            Self::Io(error) => Failure::io(what, error),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Library(error) => chain(error),
            Self::Io(error) => io_text(error),
        }
    }
}

pub(crate) fn run(global: &GlobalArgs, args: &CatArgs, out: &mut Output) -> Outcome {
    let start = crate::args::parse_bytes("--offset", &args.offset)?;
    let length = match &args.length {
        Some(typed) => crate::args::parse_bytes("--length", typed)?,
        None => u64::MAX,
    };
    let range = (start, length);
    if let Some((files, paths)) = MountedFiles::open_any(&args.volume.volume, &args.paths)? {
        let open = |path: &OsString| files.open_to_read(path).map(Source::Mounted);
        return print_all(global, &paths, range, &open, out);
    }
    if args.paths.is_empty() {
        return Ok(usage("name the files of the volume, or one of a mounted volume: MOUNT/PATH"));
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    print_all(global, &args.paths, range, &|path| open(&opened, path), out)
}

fn print_all(
    global: &GlobalArgs,
    paths: &[OsString],
    (start, length): (u64, u64),
    open: &dyn Fn(&OsString) -> Result<Source, Failure>,
    out: &mut Output,
) -> Outcome {
    let mut done = Completion::Success;
    let mut documents = 0;
    for path in paths {
        let printed = open(path).and_then(|file| {
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
                    Err(error.failure(format!("{}: at byte {at}", path.display())))
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

fn open(opened: &OpenVolume, path: &OsString) -> Result<Source, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let shown = text::escaped(&text::bytes(path));
    let file = opened.filesystem.open_file(id).map_err(|error| Failure::of(shown, &error))?;
    Ok(Source::Volume(file))
}

/// Passes the bytes of `range` to `sink`, at most [`READ_BYTES`] at a time.
fn copy(
    file: &Source,
    range: Range<u64>,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), CopyError> {
    let mut buffer = vec![0; READ_BYTES];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(READ_BYTES).min(READ_BYTES);
        let read =
            file.read_at(at, &mut buffer[..left]).map_err(|error| CopyError::Read(at, error))?;
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
    file: &Source,
    range: Range<u64>,
) -> Result<(), CopyError> {
    let writing = CopyError::Write;
    let head = json::Object::new().name("path", &text::bytes(path)).put("offset", range.start);
    let head = json::line(&head.into());
    write!(out, "  {},\"data\":\"", head.trim_end_matches('}')).map_err(writing)?;
    let stopped = copy(file, range, &mut |buffer| base64::write(out, buffer));
    let tail = match &stopped {
        Err(CopyError::Read(_, error)) => {
            format!("\",\"error\":{}}}", json::line(&error.text().into()))
        }
        Ok(()) | Err(CopyError::Write(_)) => "\"}".to_owned(),
    };
    out.write_all(tail.as_bytes()).map_err(CopyError::Write)?;
    stopped
}
