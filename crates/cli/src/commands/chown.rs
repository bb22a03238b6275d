//! `chown`: owners and groups, by number or by this machine's names.
//!
//! A file that gets another owner or group loses set-user-id, set-group-id and its capabilities,
//! as on a mounted volume.

mod owner;

use butternut::{FileId, Follow, Privileges, SetAttributes};

use super::change::{Change, failed};
use super::chmod::all;
use crate::failure::{Failure, Outcome};
use crate::flags::{ChownArgs, GlobalArgs};
use crate::output::{Output, text};
use owner::Owner;

pub(crate) fn run(global: &GlobalArgs, args: &ChownArgs, out: &mut Output) -> Outcome {
    let owner = Owner::parse(&args.owner)?;
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::Last };
    let mut change = Change::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let id = change.find(&path, follow)?;
        if args.recursive {
            for found in all(&change, id, &path)? {
                set(&mut change, owner, found.id, &found.path.bytes())?;
            }
        } else {
            set(&mut change, owner, id, &path)?;
        }
    }
    change.finish(global, out, |object| object)
}

fn set(change: &mut Change, owner: Owner, id: FileId, path: &[u8]) -> Result<(), Failure> {
    let Owner { uid, gid } = owner;
    let set = SetAttributes { uid, gid, privileges: Privileges::Strip, ..SetAttributes::default() };
    change.filesystem().set_attributes(id, &set).map_err(|error| failed(path, &error))?;
    change.did("changed", path);
    Ok(())
}
