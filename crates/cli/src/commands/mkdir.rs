//! `mkdir`: makes directories, with those above them where asked for.

use butternut::{Error, FileKind, Follow};

use super::change::{Change, Place, failed, new_inode, split};
use super::chmod::mode::Mode;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, MkdirArgs};
use crate::output::{Output, text};

/// Permissions of a directory that nobody decides on.
const PERMISSIONS: u32 = 0o755;

pub(crate) fn run(global: &GlobalArgs, args: &MkdirArgs, out: &mut Output) -> Outcome {
    let mode = args.mode.as_deref().map(Mode::parse).transpose()?;
    let permissions = mode.map_or(PERMISSIONS, |mode| mode.apply(0o777, true));
    let mut change = Change::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        if args.parents {
            make_all(&mut change, &path, permissions)?;
        } else {
            let place = change.place(&path)?;
            make(&mut change, &place, permissions)?;
        }
    }
    change.finish(global, out, |object| object)
}

fn make(change: &mut Change, place: &Place, permissions: u32) -> Result<(), Failure> {
    let new = new_inode(permissions);
    let made = change.filesystem().mkdir(place.dir, &place.name, &new);
    made.map_err(|error| failed(&place.path, &error))?;
    change.did("made", &place.path);
    Ok(())
}

/// Makes a directory, and those above it that are missing.
fn make_all(change: &mut Change, path: &[u8], permissions: u32) -> Result<(), Failure> {
    match change.filesystem().resolve(path, Follow::Last) {
        Ok(id) => {
            if change.stat(id, path)?.kind == FileKind::Directory {
                return Ok(());
            }
            return Err(failed(path, &Error::Exists));
        }
        Err(Error::NotFound) => {}
        Err(error) => return Err(failed(path, &error)),
    }
    let (above, name) = split(path);
    if !matches!(name, b"" | b".") {
        make_all(change, above, PERMISSIONS)?;
        // What is above may be there by now under another spelling: a/../b makes a, then b.
        if name == b".." {
            return Ok(());
        }
        let place = change.place(path)?;
        return make(change, &place, permissions);
    }
    make_all(change, above, permissions)
}
