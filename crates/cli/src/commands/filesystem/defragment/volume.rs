//! Files of a volume that is not mounted.
//!
//! 1. The volume is committed at the end, also if files have failed. The library commits earlier
//!    where it must: no byte of a file changes, so a run that ends early has done a part.
//! 2. Other subvolumes below a directory are left alone.

use std::ffi::{OsStr, OsString};

use butternut::{DefragmentOptions, FileId, FileKind, Follow, SharedExtents};

use super::{NO_FILE, Run};
use crate::args::VolumeArgs;
use crate::commands::transaction::{Transaction, failed};
use crate::commands::walk::{Walk, WalkEntry, WalkPath};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

pub(super) fn run(
    mut run: Run<'_>,
    volume: &OsStr,
    paths: &[OsString],
    out: &mut Output,
) -> Outcome {
    let volume = VolumeArgs { volume: volume.to_owned() };
    let mut transaction = Transaction::open_to_delete(run.global, &volume)?;
    let request = &run.request;
    let shared = if request.breaks_sharing { SharedExtents::Break } else { SharedExtents::Keep };
    let options = DefragmentOptions::default()
        .range(request.range.clone())
        .threshold(request.threshold)
        .compressor(request.compressor)
        .shared(shared);
    let starts: Vec<(Vec<u8>, FileId)> = paths
        .iter()
        .map(|path| {
            let path = text::bytes(path);
            let id = transaction.find(&path, Follow::NotLast)?;
            Ok((path, id))
        })
        .collect::<Result<_, Failure>>()?;
    for (path, id) in starts {
        below(&mut run, &transaction, (path, id), &options)?;
    }
    transaction.commit()?;
    run.finish(out)
}

/// Defragments a file, or the files below a directory.
fn below(
    run: &mut Run<'_>,
    transaction: &Transaction,
    (path, id): (Vec<u8>, FileId),
    options: &DefragmentOptions,
) -> Result<(), Failure> {
    let kind = transaction.stat(id, &path)?.kind;
    if kind == FileKind::Directory && !run.request.is_recursive {
        run.failed_directory(&path);
        return Ok(());
    }
    let mut walk = Walk::new(transaction.filesystem(), true);
    let mut next = Some(Ok(WalkEntry { path: WalkPath::new(path), id, kind, depth: 0 }));
    while let Some(step) = next {
        let entered = match step {
            Ok(found) if found.is_directory() => walk.enter(&found),
            Ok(found) if found.kind == FileKind::File => {
                file(run, transaction, &found, options)?;
                Ok(())
            }
            Ok(found) => {
                if found.depth == 0 {
                    run.failed(&Failure::new(text::escaped(&found.path.bytes()), NO_FILE));
                }
                Ok(())
            }
            Err(broken) => Err(broken),
        };
        if let Err(broken) = entered {
            run.failed(&Failure::of(text::escaped(&broken.path), &broken.error));
        }
        next = walk.next();
    }
    Ok(())
}

/// Defragments a file. Fails if the volume cannot be written to any more.
fn file(
    run: &mut Run<'_>,
    transaction: &Transaction,
    found: &WalkEntry,
    options: &DefragmentOptions,
) -> Result<(), Failure> {
    let filesystem = transaction.filesystem();
    let path = found.path.bytes();
    match filesystem.open_file(found.id).and_then(|file| file.defragment(options)) {
        Ok(done) => run.count(&path, &done),
        Err(error) if filesystem.write_error().is_some() => return Err(failed(&path, &error)),
        Err(error) => run.failed(&transaction.failed(&path, &error)),
    }
    Ok(())
}
