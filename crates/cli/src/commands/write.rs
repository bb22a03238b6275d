//! `write`: what comes on stdin, to a file.

use std::io::{self, ErrorKind, Read};

use butternut::{File, Follow, Privileges};

use super::change::{Change, failed};
use super::touch::find_or_make;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, WriteArgs};
use crate::options;
use crate::output::{Output, text};

/// Bytes per write.
const WRITE_BYTES: usize = 4 << 20;

pub(crate) fn run(global: &GlobalArgs, args: &WriteArgs, out: &mut Output) -> Outcome {
    let path = text::bytes(&args.path);
    let mut at = options::bytes("--offset", &args.offset)?;
    let mut change = Change::open(global, &args.volume)?;
    find_or_make(&mut change, &path, true)?;
    let id = change.find(&path, Follow::Last)?;
    let failed = |error: butternut::Error| failed(&path, &error);
    let file = change.filesystem().open_file(id).map_err(failed)?;
    if args.append {
        at = file.size();
    }
    let start = at;
    let mut input = io::stdin().lock();
    let mut buffer = vec![0; WRITE_BYTES];
    loop {
        let read = fill(&mut input, &mut buffer).map_err(|error| Failure::io("stdin", &error))?;
        if read == 0 {
            break;
        }
        write_all(&file, at, &buffer[..read], Privileges::Strip).map_err(failed)?;
        at += read as u64;
    }
    if args.truncate && file.size() != at {
        file.truncate(at).map_err(failed)?;
    }
    drop(file);
    change.did("written", &path);
    change.finish(global, out, |object| object.put("offset", start).put("bytes", at - start))
}

/// Writes all of `bytes`, or fails: what can only be written in part is not wanted.
pub(super) fn write_all(
    file: &File,
    offset: u64,
    bytes: &[u8],
    privileges: Privileges,
) -> butternut::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        // The second try of what did not fit says why.
        done += file.write_as(offset + done as u64, &bytes[done..], privileges)?;
    }
    Ok(())
}

/// Reads until the buffer is full or nothing more comes.
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
