//! `send`: writes a subvolume, or its difference to another one, as a stream for `btrfs receive`.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use butternut::{Error, Follow, SendOptions, SendProtocol};

use crate::args::{GlobalArgs, SendArgs};
use crate::commands::transaction::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, text};
use crate::volume::OpenVolume;

/// Bytes of a stream that are written to a file at once.
const BUFFER_BYTES: usize = 256 << 10;

pub(crate) fn run(global: &GlobalArgs, args: &SendArgs, out: &mut Output) -> Outcome {
    if args.file.is_none() && out.is_terminal {
        return Err(Failure::new("stdout", "a stream is not written to a terminal")
            .hint("name a file with -f, or pipe the stream to `btrfs receive`"));
    }
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let subvolume = find(&opened, &args.subvolume)?;
    let sources: Vec<u64> =
        args.clone_sources.iter().map(|path| find(&opened, path)).collect::<Result<_, _>>()?;
    let parent = parent(&opened, args, subvolume, &sources)?;
    let protocol = match args.proto.as_deref() {
        Some("2") => SendProtocol::Two,
        None if args.compressed_data => SendProtocol::Two,
        _ => SendProtocol::One,
    };
    let options = SendOptions::default()
        .parent(parent)
        .clone_sources(sources)
        .protocol(protocol)
        .no_data(args.no_data)
        .compressed_data(args.compressed_data);
    let what = text::escaped(&text::bytes(&args.subvolume));
    match &args.file {
        None => opened
            .filesystem
            .send(subvolume, &options, out)
            .map_err(|error| failure(&what, "stdout", error))?,
        Some(path) => {
            let shown = path.display().to_string();
            let mut to = create(path)?;
            opened
                .filesystem
                .send(subvolume, &options, &mut to)
                .map_err(|error| failure(&what, &shown, error))?;
            to.flush().map_err(|error| Failure::io(shown, &error))?;
        }
    }
    Ok(Completion::Success)
}

fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    let file =
        File::create(path).map_err(|error| Failure::io(path.display().to_string(), &error))?;
    Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
}

/// Returns the id of the subvolume at a path.
fn find(opened: &OpenVolume, path: &OsString) -> Result<u64, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    if id.is_subvolume_root() { Ok(id.subvolume) } else { Err(not_a_subvolume(&text::bytes(path))) }
}

/// Returns the parent that was named, or one of the clone sources.
fn parent(
    opened: &OpenVolume,
    args: &SendArgs,
    subvolume: u64,
    sources: &[u64],
) -> Result<Option<u64>, Failure> {
    if let Some(path) = &args.parent {
        return find(opened, path).map(Some);
    }
    if sources.is_empty() {
        return Ok(None);
    }
    let best = opened.filesystem.best_parent(subvolume, sources);
    let best = best.map_err(|error| opened.failure(&error))?;
    let what = text::escaped(&text::bytes(&args.subvolume));
    best.map(Some).ok_or_else(|| {
        Failure::new(what, "no clone source is a snapshot of the same subvolume")
            .hint("name the parent with -p")
    })
}

/// Converts an error of a stream; `to` is where it was written.
fn failure(what: &str, to: &str, error: Error) -> Failure {
    if let Error::StreamOutput(error) = error {
        return if to == "stdout" { error.into() } else { Failure::io(to, &error) };
    }
    let failure = Failure::of(what, &error);
    if matches!(error, Error::NotPermitted { .. }) {
        return failure
            .hint("`butternut property set VOLUME PATH ro true`, or send a snapshot (-r)");
    }
    failure
}
