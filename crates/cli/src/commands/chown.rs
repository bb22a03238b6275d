//! `chown`: owners and groups, by number or by this machine's names.
//!
//! A file that gets another owner or group loses set-user-id, set-group-id and its capabilities,
//! as on a mounted volume.

mod owner;

use butternut::{FileId, Follow, Privileges, SetAttributes};

use super::change::{Change, failed};
use super::chmod::all;
use super::walk::WalkPath;
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
                set(&mut change, owner, found.id, &found.path)?;
            }
        } else {
            set(&mut change, owner, id, &WalkPath::new(path))?;
        }
    }
    change.finish(global, out, |object| object)
}

fn set(change: &mut Change, owner: Owner, id: FileId, path: &WalkPath) -> Result<(), Failure> {
    let Owner { uid, gid } = owner;
    let set = SetAttributes { uid, gid, privileges: Privileges::Strip, ..SetAttributes::default() };
    let changed = change.filesystem().set_attributes(id, &set);
    changed.map_err(|error| failed(&path.bytes(), &error))?;
    change.did_at("changed", path);
    Ok(())
}
