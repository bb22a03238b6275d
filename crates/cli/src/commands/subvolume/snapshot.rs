//! `subvolume snapshot`: makes a snapshot of a subvolume.
//!
//! A destination that is a directory gets the snapshot under the name of the source, as in
//! btrfs-subvolume(8).

use butternut::format::quota::QgroupId;
use butternut::{FileKind, Filesystem, Follow, RecursiveSnapshot, SnapshotAccess};
use serde_json::json;

use crate::args::{GlobalArgs, SubvolumeSnapshotArgs};
use crate::commands::transaction::{Location, Transaction, split};
use crate::commands::{mounted, qgroup};
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeSnapshotArgs, out: &mut Output) -> Outcome {
    let qgroups = qgroup::parse_all(&args.qgroups)?;
    let Some(destination) = &args.destination else {
        if mounted::is_path(&args.volume.volume, true) {
            let paths = (args.volume.volume.as_os_str(), args.source.as_os_str());
            let how = (args.read_only, args.recursive);
            return mounted::snapshot(global, paths, how, &qgroups, out);
        }
        return Ok(mounted::usage("subvolume snapshot VOLUME SOURCE DESTINATION"));
    };
    let paths = [&args.source, destination];
    if let Some(usage) = mounted::with_path_apart(&args.volume.volume, &paths) {
        return Ok(usage);
    }
    let mut transaction = Transaction::open(global, &args.volume)?;
    let source_path = text::bytes(&args.source);
    let source = transaction.find(&source_path, Follow::Last)?;
    if !source.is_subvolume_root() {
        return Err(not_a_subvolume(&source_path));
    }
    let location = name_of(&transaction, &text::bytes(destination), &source_path)?;
    let made = make(transaction.filesystem(), source.subvolume, &location, args, &qgroups);
    let made = made.map_err(|error| transaction.failed(&location.path, &error))?;
    transaction.record("created", &location.path);
    transaction.finish(global, out, |object| {
        let id = made.first().map(|(_, id)| *id);
        let all = made.iter().map(|(source, id)| json!({ "source": source, "subvolume": id }));
        let all: Vec<_> = all.collect();
        let object = object.put("subvolume", id);
        if args.recursive { object.put("snapshots", all) } else { object }
    })
}

/// Makes a snapshot, or a recursive one. Returns the ids of the sources and of their snapshots.
fn make(
    filesystem: &Filesystem,
    source: u64,
    to: &Location,
    args: &SubvolumeSnapshotArgs,
    qgroups: &[QgroupId],
) -> butternut::Result<Vec<(u64, u64)>> {
    let access = if args.read_only { SnapshotAccess::ReadOnly } else { SnapshotAccess::ReadWrite };
    let at = (to.dir, to.name.as_slice());
    if args.recursive {
        let options = RecursiveSnapshot::new(access);
        return filesystem.snapshot_recursive_in_qgroups(source, at, options, qgroups);
    }
    Ok(vec![(source, filesystem.snapshot_in_qgroups(source, at, access, qgroups)?)])
}

/// Returns the name that the snapshot gets.
fn name_of(transaction: &Transaction, path: &[u8], source: &[u8]) -> Result<Location, Failure> {
    let filesystem = transaction.filesystem();
    let Ok(dir) = filesystem.resolve(path, Follow::Last) else { return transaction.locate(path) };
    if transaction.stat(dir, path)?.kind != FileKind::Directory {
        return transaction.locate(path);
    }
    let name = split(source).1;
    if matches!(name, b"" | b"." | b"..") {
        return Err(Failure::new(text::escaped(path), "the directory exists")
            .hint("name the snapshot: the source has no name of its own"));
    }
    Ok(Transaction::location_in(dir, path, name))
}
