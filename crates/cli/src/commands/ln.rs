//! `ln`: creates hard and symbolic links.

use butternut::{FileKind, Follow};

use super::mv::is_directory;
use super::transaction::{Location, Transaction, failed, new_inode, split};
use crate::args::{GlobalArgs, LnArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &LnArgs, out: &mut Output) -> Outcome {
    let (target, name) = (text::bytes(&args.target), text::bytes(&args.name));
    let mut transaction = Transaction::open(global, &args.volume)?;
    let location = if is_directory(&transaction, &name)? {
        let dir = transaction.find(&name, Follow::Last)?;
        Transaction::location_in(dir, &name, split(&target).1)
    } else {
        transaction.locate(&name)?
    };
    location.refuse_slash()?;
    if args.symbolic {
        remove_existing(&mut transaction, args, &location, None)?;
        let new = new_inode(0o777);
        let made = transaction.filesystem().symlink(location.dir, &location.name, &target, &new);
        made.map_err(|error| failed(&location.path, &error))?;
    } else {
        let id = transaction.find(&target, Follow::NotLast)?;
        if transaction.stat(id, &target)?.kind == FileKind::Directory {
            return Err(Failure::new(
                text::escaped(&target),
                "hard links to directories are not allowed",
            )
            .hint("`ln -s` creates a symbolic link"));
        }
        remove_existing(&mut transaction, args, &location, Some(id))?;
        let made = transaction.filesystem().link(id, location.dir, &location.name);
        made.map_err(|error| failed(&location.path, &error))?;
    }
    transaction.record("made", &location.path);
    transaction.finish(global, out, |object| object)
}

/// Removes an existing file at the location, with --force.
fn remove_existing(
    transaction: &mut Transaction,
    args: &LnArgs,
    location: &Location,
    target: Option<butternut::FileId>,
) -> Result<(), Failure> {
    if !args.force {
        return Ok(());
    }
    let Some(there) = transaction.existing(location)? else { return Ok(()) };
    if target == Some(there) {
        let why = "is already a name of this file";
        return Err(Failure::new(text::escaped(&location.path), why));
    }
    let removed = transaction.filesystem().unlink(location.dir, &location.name);
    removed.map_err(|error| failed(&location.path, &error))?;
    transaction.record("removed", &location.path);
    Ok(())
}
