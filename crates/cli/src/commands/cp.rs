//! `cp`: copies files inside a volume; the copies share their data with the originals.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::{Error, File, FileId, FileKind, Follow, Privileges, SetAttributes, SetTime, Stat};

use super::mv::{MadeNames, is_directory};
use super::transaction::{Location, Transaction, failed, new_inode, split};
use super::write::write_all;
use crate::args::{CpArgs, GlobalArgs, Reflink};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Bytes per read and write of a copy.
const COPY_BYTES: usize = 4 << 20;

/// What to do about a path that exists outside of the volume only.
const INTO_VOLUME: &str = "cp copies inside the volume; `butternut import` copies into it";
const OUT_OF_VOLUME: &str = "cp copies inside the volume; `butternut export` copies out of it";

pub(crate) fn run(global: &GlobalArgs, args: &CpArgs, out: &mut Output) -> Outcome {
    let paths: Vec<Vec<u8>> = args.paths.iter().map(text::bytes).collect();
    let Some((dest, sources)) = paths.split_last() else {
        return Err(Failure::new("cp", "no file is named"));
    };
    let mut transaction = Transaction::open(global, &args.volume)?;
    let is_into = is_directory(&transaction, dest)?;
    if sources.len() > 1 && !is_into {
        return Err(Failure::new(
            text::escaped(dest),
            "is not a directory, and several files cannot be copied to one name",
        )
        .hint("create it with `butternut mkdir`, or copy one file"));
    }
    let mut made = MadeNames::default();
    for path in sources {
        let to = if is_into {
            let dir = transaction.find(dest, Follow::Last)?;
            Transaction::location_in(dir, dest, split(path).1)
        } else {
            transaction.locate(dest).map_err(|failure| {
                let parent = Path::new(OsStr::from_bytes(dest)).parent();
                let is_outside = parent.is_some_and(Path::is_dir);
                if is_outside { failure.hint(OUT_OF_VOLUME) } else { failure }
            })?
        };
        to.refuse_slash()?;
        made.add(&to)?;
        copy(&mut transaction, args, path, &to)?;
    }
    transaction.finish(global, out, |object| object)
}

/// Copies one file.
fn copy(
    transaction: &mut Transaction,
    args: &CpArgs,
    path: &[u8],
    to: &Location,
) -> Result<(), Failure> {
    let id = transaction.find(path, Follow::Last).map_err(|failure| {
        let is_outside = Path::new(OsStr::from_bytes(path)).exists();
        if is_outside { failure.hint(INTO_VOLUME) } else { failure }
    })?;
    let stat = transaction.stat(id, path)?;
    if stat.kind == FileKind::Directory {
        return Err(Failure::new(text::escaped(path), "is a directory")
            .hint("`butternut subvolume snapshot` makes a copy of a subvolume"));
    }
    let from = transaction.filesystem().open_file(id).map_err(|error| failed(path, &error))?;
    let target = open_target(transaction, args, &stat, to)?;
    if from.id() == target.id() {
        let why = format!("is the same file as {}", text::escaped(&to.path));
        return Err(Failure::new(text::escaped(path), why));
    }
    let copied = match args.reflink {
        Reflink::Always => target.clone_range_as(0, &from, (0, 0), Privileges::Strip),
        Reflink::Auto => share_or_copy(&target, &from),
        Reflink::Never => copy_bytes(&target, &from),
    };
    copied.map_err(|error| failed(&to.path, &error))?;
    if args.preserve {
        let set = SetAttributes {
            mode: Some(stat.mode & 0o7777),
            uid: Some(stat.uid),
            gid: Some(stat.gid),
            atime: Some(SetTime::At(stat.atime)),
            mtime: Some(SetTime::At(stat.mtime)),
            ..SetAttributes::default()
        };
        let set = transaction.filesystem().set_attributes(target.id(), &set);
        set.map_err(|error| failed(&to.path, &error))?;
    }
    transaction.record("copied", path);
    transaction.record("written", &to.path);
    Ok(())
}

/// Opens the file to copy to, and makes it empty; creates it if it does not exist.
fn open_target(
    transaction: &mut Transaction,
    args: &CpArgs,
    source: &Stat,
    to: &Location,
) -> Result<File, Failure> {
    let there: Option<FileId> = transaction.existing(to)?;
    if there.is_some() && args.no_clobber {
        return Err(failed(&to.path, &Error::Exists));
    }
    let id = if there.is_some() {
        transaction.find(&to.path, Follow::Last)?
    } else {
        let new = new_inode(source.mode & 0o777);
        let made = transaction.filesystem().create(to.dir, &to.name, &new);
        made.map_err(|error| failed(&to.path, &error))?
    };
    let opened = transaction.filesystem().open_file(id);
    let file = opened.map_err(|error| failed(&to.path, &error))?;
    if id != source.id {
        file.truncate(0).map_err(|error| failed(&to.path, &error))?;
    }
    Ok(file)
}

/// Copies a file, and shares what can be shared.
fn share_or_copy(to: &File, from: &File) -> butternut::Result<()> {
    let (mut at, end) = (0, from.len());
    while at < end {
        // A copy that is cut short has an error, which the next one returns.
        match to.copy_range_as(at, from, at..end, Privileges::Strip)? {
            0 => return Err(short()),
            copied => at += copied,
        }
    }
    Ok(())
}

/// Copies all bytes of a file without sharing any, and leaves its holes out.
fn copy_bytes(to: &File, from: &File) -> butternut::Result<()> {
    from.verify_holes(0..from.len())?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while let Some(start) = from.seek_data(at)? {
        let end = from.seek_hole(start)?.unwrap_or_else(|| from.len());
        at = start;
        while at < end {
            let most = usize::try_from(end - at).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            let read = from.read_at(at, &mut buffer[..most])?;
            if read == 0 {
                return Err(short());
            }
            write_all(to, at, &buffer[..read], Privileges::Strip)?;
            at += read as u64;
        }
    }
    to.truncate(from.len())
}

/// The error of a copy that ended early.
fn short() -> Error {
    Error::EndOfFile
}
