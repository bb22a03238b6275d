//! `ln`: hard and symbolic links.

use butternut::{FileKind, Follow};

use super::change::{Change, Place, failed, new_inode, split};
use super::mv::is_directory;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, LnArgs};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &LnArgs, out: &mut Output) -> Outcome {
    let (target, name) = (text::bytes(&args.target), text::bytes(&args.name));
    let mut change = Change::open(global, &args.volume)?;
    let place = if is_directory(&change, &name)? {
        let dir = change.find(&name, Follow::Last)?;
        Change::within(dir, &name, split(&target).1)
    } else {
        change.place(&name)?
    };
    if args.symbolic {
        make_room(&mut change, args, &place, None)?;
        let new = new_inode(0o777);
        let made = change.filesystem().symlink(place.dir, &place.name, &target, &new);
        made.map_err(|error| failed(&place.path, &error))?;
    } else {
        let id = change.find(&target, Follow::NotLast)?;
        if change.stat(id, &target)?.kind == FileKind::Directory {
            return Err(Failure::new(text::escaped(&target), "directories have one name")
                .cure("`ln -s` makes a symbolic link"));
        }
        make_room(&mut change, args, &place, Some(id))?;
        let made = change.filesystem().link(id, place.dir, &place.name);
        made.map_err(|error| failed(&place.path, &error))?;
    }
    change.did("made", &place.path);
    change.finish(global, out, |object| object)
}

/// Takes away what has the name, under --force.
fn make_room(
    change: &mut Change,
    args: &LnArgs,
    place: &Place,
    target: Option<butternut::FileId>,
) -> Result<(), Failure> {
    if !args.force {
        return Ok(());
    }
    let Some(there) = change.occupant(place)? else { return Ok(()) };
    if target == Some(there) {
        let why = "is that file already, under this name";
        return Err(Failure::new(text::escaped(&place.path), why));
    }
    let removed = change.filesystem().unlink(place.dir, &place.name);
    removed.map_err(|error| failed(&place.path, &error))?;
    change.did("removed", &place.path);
    Ok(())
}
