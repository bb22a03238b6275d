//! `write`: writes stdin to a file.
//!
//! 1. Without an offset it replaces the file, as `>` of a shell does. Only `--truncate` replaces
//!    what is in a file by nothing: the command before a pipe may have failed.
//! 2. The volume is opened when stdin has begun: the command before a pipe may read it. That its
//!    devices exist is checked before: a user at a terminal learns of a typing error at once.
//! 3. What may not be written is refused also if stdin is empty.

use std::io::{self, ErrorKind, Read};

use butternut::server::FilesystemExt;
use butternut::{File, Follow, Privileges, SetAttributes, SetTime};

use super::touch::find_or_make;
use super::transaction::Transaction;
use crate::args::{GlobalArgs, WriteArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};
use crate::volume::{check_devices, parse_arg};

/// Bytes per write.
const WRITE_BYTES: usize = 4 << 20;

pub(crate) fn run(global: &GlobalArgs, args: &WriteArgs, out: &mut Output) -> Outcome {
    let path = text::bytes(&args.path);
    let offset = args.offset.as_deref().map(|typed| crate::args::parse_bytes("--offset", typed));
    let offset = offset.transpose()?;
    check_devices(&parse_arg(std::slice::from_ref(&args.volume.volume))?)?;
    let mut input = io::stdin().lock();
    let mut buffer = vec![0; WRITE_BYTES];
    let mut read = read_some(&mut input, &mut buffer)?;
    let mut transaction = Transaction::open(global, &args.volume)?;
    find_or_make(&mut transaction, &path, true)?;
    let id = transaction.find(&path, Follow::Last)?;
    let failed = |error: butternut::Error| transaction.failed(&path, &error);
    let file = transaction.filesystem().open_file(id).map_err(failed)?;
    transaction.filesystem().check_writable(id).map_err(failed)?;
    let start = if args.append { file.len() } else { offset.unwrap_or_default() };
    // A write of no bytes changes nothing, and is refused like any other (law 3).
    file.write_as(start, &[], Privileges::Strip).map_err(failed)?;
    if offset.is_none() && !args.append {
        if read == 0 && !args.truncate && !file.is_empty() {
            let why = "stdin is empty, and the file is not";
            let failure = Failure::new(text::escaped(&path), why);
            return Err(failure.hint("--truncate empties it"));
        }
        let (privileges, mtime) = (Privileges::Strip, Some(SetTime::Now));
        let empty = SetAttributes { privileges, mtime, ..SetAttributes::size(0) };
        transaction.filesystem().set_attributes(id, &empty).map_err(failed)?;
    }
    let mut at = start;
    while read > 0 {
        write_all(&file, at, &buffer[..read], Privileges::Strip).map_err(failed)?;
        at += read as u64;
        read = read_some(&mut input, &mut buffer)?;
    }
    if args.truncate && file.len() != at {
        file.truncate(at).map_err(failed)?;
    }
    drop(file);
    transaction.record("written", &path);
    transaction.finish(global, out, |object| object.put("offset", start).put("bytes", at - start))
}

/// Writes all of `bytes` at `offset`.
///
/// # Errors
/// Fails if a part cannot be written. Earlier parts may have been written.
pub(super) fn write_all(
    file: &File,
    offset: u64,
    bytes: &[u8],
    privileges: Privileges,
) -> butternut::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        // A short write is retried; the retry returns the error.
        done += file.write_as(offset + done as u64, &bytes[done..], privileges)?;
    }
    Ok(())
}

/// Reads until the buffer is full or stdin ends.
fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Failure> {
    fill(input, buffer).map_err(|error| Failure::io("stdin", &error))
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
