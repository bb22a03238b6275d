//! `chown`: changes owners and groups, by number or by the names of this machine.
//!
//! A change of owner or group clears the set-user-ID and set-group-ID bits and removes the
//! capabilities of a file, as on a mounted volume.

pub(super) mod owner;

use butternut::{FileId, Follow, Privileges, SetAttributes};

use super::chmod::subtree;
use super::transaction::{Transaction, failed};
use super::walk::WalkPath;
use crate::args::{ChownArgs, GlobalArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};
use owner::Owner;

pub(crate) fn run(global: &GlobalArgs, args: &ChownArgs, out: &mut Output) -> Outcome {
    let owner = Owner::parse(&args.owner)?;
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::Last };
    let mut transaction = Transaction::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let id = transaction.find(&path, follow)?;
        if args.recursive {
            for found in subtree(&transaction, id, &path)? {
                set(&mut transaction, owner, found.id, &found.path)?;
            }
        } else {
            set(&mut transaction, owner, id, &WalkPath::new(path))?;
        }
    }
    transaction.finish(global, out, |object| object)
}

fn set(
    transaction: &mut Transaction,
    owner: Owner,
    id: FileId,
    path: &WalkPath,
) -> Result<(), Failure> {
    let Owner { uid, gid } = owner;
    let set = SetAttributes { uid, gid, privileges: Privileges::Strip, ..SetAttributes::default() };
    let changed = transaction.filesystem().set_attributes(id, &set);
    changed.map_err(|error| failed(&path.bytes(), &error))?;
    transaction.record_at("changed", path);
    Ok(())
}
