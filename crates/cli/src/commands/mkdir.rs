//! `mkdir`: creates directories, and with --parents their missing parents.

use butternut::{Error, FileKind, Follow};

use super::chmod::mode::Mode;
use super::transaction::{Location, Transaction, failed, new_inode, split};
use crate::args::{GlobalArgs, MkdirArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Mode of a new directory without --mode.
const PERMISSIONS: u32 = 0o755;

pub(crate) fn run(global: &GlobalArgs, args: &MkdirArgs, out: &mut Output) -> Outcome {
    let mode = args.mode.as_deref().map(Mode::parse).transpose()?;
    let permissions = mode.map_or(PERMISSIONS, |mode| mode.apply(0o777, true));
    let mut transaction = Transaction::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        if args.parents {
            make_all(&mut transaction, &path, permissions)?;
        } else {
            let location = transaction.locate(&path)?;
            make(&mut transaction, &location, permissions)?;
        }
    }
    transaction.finish(global, out, |object| object)
}

fn make(
    transaction: &mut Transaction,
    location: &Location,
    permissions: u32,
) -> Result<(), Failure> {
    let new = new_inode(permissions);
    let made = transaction.filesystem().mkdir(location.dir, &location.name, &new);
    made.map_err(|error| failed(&location.path, &error))?;
    transaction.record("made", &location.path);
    Ok(())
}

/// Creates a directory and its missing parents.
fn make_all(transaction: &mut Transaction, path: &[u8], permissions: u32) -> Result<(), Failure> {
    match transaction.filesystem().resolve(path, Follow::Last) {
        Ok(id) => {
            if transaction.stat(id, path)?.kind == FileKind::Directory {
                return Ok(());
            }
            return Err(failed(path, &Error::Exists));
        }
        Err(Error::NotFound) => {}
        Err(error) => return Err(failed(path, &error)),
    }
    let (parent, name) = split(path);
    if !matches!(name, b"" | b".") {
        make_all(transaction, parent, PERMISSIONS)?;
        // The parent may exist by now under another path: a/../b creates a, then b.
        if name == b".." {
            return Ok(());
        }
        let location = transaction.locate(path)?;
        return make(transaction, &location, permissions);
    }
    make_all(transaction, parent, permissions)
}
