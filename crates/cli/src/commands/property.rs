//! `property get` and `property set`: properties of subvolumes, as btrfs-property(8) names them.
//! The only one is `ro`.

use std::io::Write;

use butternut::Follow;

use crate::args::{GlobalArgs, PropertyGetArgs, PropertySetArgs};
use crate::commands::transaction::{Transaction, failed};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

pub(crate) fn get(global: &GlobalArgs, args: &PropertyGetArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let id = opened.resolve(&args.path, Follow::Last)?;
    let path = text::bytes(&args.path);
    require_subvolume(id.is_subvolume_root(), &path)?;
    let info = opened.filesystem.subvolume(id.subvolume);
    let info = info.map_err(|error| failed(&path, &error))?;
    if global.json {
        json::document(out, Object::new().put("ro", info.read_only))?;
    } else {
        writeln!(out, "ro={}", info.read_only)?;
    }
    Ok(Completion::Success)
}

pub(crate) fn set(global: &GlobalArgs, args: &PropertySetArgs, out: &mut Output) -> Outcome {
    let mut transaction = Transaction::open(global, &args.volume)?;
    let path = text::bytes(&args.path);
    let id = transaction.find(&path, Follow::Last)?;
    require_subvolume(id.is_subvolume_root(), &path)?;
    let info = transaction.filesystem().subvolume(id.subvolume);
    let info = info.map_err(|error| failed(&path, &error))?;
    if !args.value && !args.force && info.received_uuid != [0; 16] {
        return Err(Failure::new(text::escaped(&path), "the subvolume was received")
            .hint("it cannot be the parent of later streams once it is writable; -f does it"));
    }
    let set = transaction.filesystem().set_subvolume_read_only(id.subvolume, args.value);
    set.map_err(|error| transaction.failed(&path, &error))?;
    transaction.record("changed", &path);
    transaction.finish(global, out, |object| object.put("ro", args.value))
}

fn require_subvolume(is_subvolume: bool, path: &[u8]) -> Result<(), Failure> {
    if is_subvolume {
        return Ok(());
    }
    Err(Failure::new(text::escaped(path), "not a subvolume")
        .hint("the property ro belongs to subvolumes"))
}
