//! `subvolume delete`: deletes subvolumes with everything in them, and frees their space.
//!
//! Laws:
//!
//! 1. All subvolumes are looked up before the first one is deleted, except those of a mounted
//!    volume that are named by id. So a mistyped name deletes nothing, nor does the default
//!    subvolume among them.
//! 2. The space of those that were deleted is freed, and they are reported, also if a further
//!    deletion fails.
//! 3. A subvolume that several arguments name, itself or by one around it, is deleted once.

use std::collections::BTreeSet;

use butternut::{Error, FileId, TOP_LEVEL};

use crate::args::{GlobalArgs, SubvolumeDeleteArgs};
use crate::commands::mounted;
use crate::commands::transaction::{Location, Transaction, failed};
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeDeleteArgs, out: &mut Output) -> Outcome {
    let volume = &args.volume.volume;
    let is_mounted = mounted::is_path(volume, args.paths.is_empty() && args.ids.is_empty());
    if is_mounted && !args.ids.is_empty() && !args.paths.is_empty() {
        return Ok(mounted::usage("subvolume delete -i ID... MOUNT"));
    }
    if is_mounted && !args.ids.is_empty() {
        if args.recursive {
            return Ok(mounted::usage("of a mounted volume, -R names subvolumes by path"));
        }
        return mounted::delete::by_id(global, volume, &args.ids, out);
    }
    if is_mounted {
        let paths: Vec<_> = std::iter::once(volume).chain(&args.paths).collect();
        return mounted::delete::by_path(global, &paths, args.recursive, out);
    }
    if args.paths.is_empty() && args.ids.is_empty() {
        return Ok(mounted::usage("subvolume delete VOLUME PATH..."));
    }
    let mut transaction = Transaction::open_to_delete(global, &args.volume)?;
    let mut named = Named::default();
    for id in &args.ids {
        let location = location_of(&transaction, *id)?;
        named.add(&transaction, *id, location, args.recursive)?;
    }
    for path in &args.paths {
        let (location, id) = location_at(&transaction, &text::bytes(path))?;
        named.add(&transaction, id, location, args.recursive)?;
    }
    let default = transaction.filesystem().default_subvolume();
    let default = default.map_err(|error| transaction.failure(&error))?;
    if let Some((_, location)) = named.locations.iter().find(|(id, _)| *id == default) {
        return Err(mounted::delete::default_stays(&location.path));
    }
    let mut ids = Vec::new();
    let mut done = named.locations.iter().try_for_each(|(_, location)| {
        ids.push(delete(&mut transaction, location)?);
        Ok(())
    });
    if !args.keep_space {
        let cleaned = transaction.filesystem().clean_subvolumes();
        done = done.and(cleaned.map(drop).map_err(|error| transaction.failure(&error)));
    }
    transaction.finish_after(done, global, out, |object| object.put("subvolumes", ids))
}

fn delete(transaction: &mut Transaction, location: &Location) -> Result<u64, Failure> {
    let deleted = transaction.filesystem().delete_subvolume(location.dir, &location.name);
    let id = deleted.map_err(|error| {
        if matches!(error, Error::NotEmpty) {
            return failed(&location.path, &error).hint(mounted::delete::INSIDE_FIRST);
        }
        let failure = transaction.failed(&location.path, &error);
        if !matches!(error, Error::ReadOnly { .. }) {
            return failure;
        }
        // The volume is open for writing, so it is the subvolume around.
        let around = transaction.filesystem().subvolume(location.dir.subvolume);
        let around = around.ok().and_then(|around| around.path).unwrap_or_default();
        let volume = transaction.top_level();
        failure
            .hint(mounted::delete::writable_first(&format!("{volume} /{}", text::escaped(&around))))
    })?;
    transaction.record("deleted", &location.path);
    Ok(id)
}

/// The subvolumes to delete, in order.
#[derive(Default)]
struct Named {
    locations: Vec<(u64, Location)>,
    ids: BTreeSet<u64>,
}

impl Named {
    /// Adds a subvolume; `is_recursive`: and before it those inside it, each before the one that it
    /// is in (law 3).
    fn add(
        &mut self,
        transaction: &Transaction,
        id: u64,
        location: Location,
        is_recursive: bool,
    ) -> Result<(), Failure> {
        if is_recursive {
            let all = transaction.filesystem().subvolumes();
            let all = all.map_err(|error| transaction.failure(&error))?;
            for inside in mounted::delete::inside(&all, id) {
                if !self.ids.contains(&inside.id) {
                    self.push(inside.id, location_of(transaction, inside.id)?);
                }
            }
        }
        self.push(id, location);
        Ok(())
    }

    fn push(&mut self, id: u64, location: Location) {
        if self.ids.insert(id) {
            self.locations.push((id, location));
        }
    }
}

/// Returns the name of the subvolume at a path, and its id.
fn location_at(transaction: &Transaction, path: &[u8]) -> Result<(Location, u64), Failure> {
    let location = transaction.locate(path)?;
    let found = transaction.existing(&location)?;
    let id = found.ok_or_else(|| transaction.failed(path, &Error::NotFound))?;
    if !id.is_subvolume_root() {
        return Err(not_a_subvolume(path).hint("`butternut rm -r` removes directories"));
    }
    Ok((location, id.subvolume))
}

/// Returns the name of the subvolume with an id.
fn location_of(transaction: &Transaction, id: u64) -> Result<Location, Failure> {
    if id == TOP_LEVEL {
        return Err(Failure::new(id.to_string(), "this is the top level, which cannot be deleted")
            .hint("`butternut subvolume list` shows what can be deleted"));
    }
    let info = transaction.filesystem().subvolume(id);
    let info = info.map_err(|error| Failure::of(id.to_string(), &error))?;
    if info.deleted {
        return Err(Failure::new(id.to_string(), "this subvolume is deleted already")
            .hint("its space is freed by the next mount for writing"));
    }
    let (Some(parent), Some(path)) = (info.parent, info.path) else {
        return Err(Failure::new(id.to_string(), "no path leads to this subvolume")
            .hint("its directories are too deep to be shown, or see `butternut check`"));
    };
    Ok(Location { dir: FileId::new(parent, info.dir), name: info.name, path })
}
