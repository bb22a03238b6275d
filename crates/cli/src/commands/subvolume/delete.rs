//! `subvolume delete`: deletes subvolumes with everything in them, and frees their space.

use butternut::{Error, FileId, Filesystem};

use crate::args::{GlobalArgs, SubvolumeDeleteArgs};
use crate::commands::mounted;
use crate::commands::transaction::{Location, Transaction, failed};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeDeleteArgs, out: &mut Output) -> Outcome {
    let volume = &args.volume.volume;
    let is_mounted = mounted::is_path(volume, args.paths.is_empty());
    if is_mounted && !args.ids.is_empty() && !args.paths.is_empty() {
        return Ok(mounted::usage("subvolume delete -i ID... MOUNT"));
    }
    if is_mounted && !args.ids.is_empty() {
        return mounted::delete_ids(global, volume, &args.ids, out);
    }
    if is_mounted {
        let paths: Vec<_> = std::iter::once(volume).chain(&args.paths).collect();
        return mounted::delete(global, &paths, out);
    }
    if args.paths.is_empty() && args.ids.is_empty() {
        return Ok(mounted::usage("subvolume delete VOLUME PATH..."));
    }
    let mut transaction = Transaction::open_to_delete(global, &args.volume)?;
    let mut ids = Vec::new();
    for id in &args.ids {
        let location = location_of(&transaction, *id)?;
        ids.push(delete(&mut transaction, &location)?);
    }
    for path in &args.paths {
        let location = transaction.locate(&text::bytes(path))?;
        ids.push(delete(&mut transaction, &location)?);
    }
    if !args.keep_space {
        let cleaned = transaction.filesystem().clean_subvolumes();
        cleaned.map_err(|error| transaction.failure(&error))?;
    }
    transaction.finish(global, out, |object| object.put("subvolumes", ids))
}

fn delete(transaction: &mut Transaction, location: &Location) -> Result<u64, Failure> {
    let deleted = transaction.filesystem().delete_subvolume(location.dir, &location.name);
    let id = deleted.map_err(|error| {
        let hint = if matches!(error, Error::NotEmpty) {
            Some("delete the subvolumes inside it first")
        } else if matches!(error, Error::InvalidArgument { .. }) {
            Some("`butternut rm -r` removes directories")
        } else {
            None
        };
        failed(&location.path, &error).hint_if(hint)
    })?;
    transaction.record("deleted", &location.path);
    Ok(id)
}

/// Returns the name of the subvolume with an id.
fn location_of(transaction: &Transaction, id: u64) -> Result<Location, Failure> {
    let filesystem: &Filesystem = transaction.filesystem();
    let info = filesystem.subvolume(id).map_err(|error| transaction.failure(&error))?;
    let (Some(parent), Some(path)) = (info.parent, info.path) else {
        return Err(Failure::new(id.to_string(), "this subvolume has no name"));
    };
    Ok(Location { dir: FileId::new(parent, info.dir), name: info.name, path })
}
