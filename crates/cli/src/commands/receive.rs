//! `receive`: makes the subvolumes of a send stream, in a volume or in a plain directory, or prints
//! the commands of the stream.

mod directory;
mod dump;

use std::fs::File;
use std::io::{BufReader, Read, stdin};

use butternut::receive::{ReceiveReport, ReceivedSubvolume, StreamEnd, StreamReader};
use butternut::{FileKind, Follow};
use serde_json::Value;

use super::transaction::{Transaction, failed};
use crate::args::{GlobalArgs, ReceiveArgs, VolumeArgs};
use crate::failure::{Failure, Outcome, chain};
use crate::output::json::Object;
use crate::output::{Output, stderr_line, text};

/// Size of the buffer for the input in bytes.
const INPUT_BYTES: usize = 256 << 10;

/// The stream that a command reads, with its name for messages.
struct Input {
    name: String,
    stream: StreamReader<BufReader<Box<dyn Read>>>,
    end: StreamEnd,
}

pub(crate) fn run(global: &GlobalArgs, args: &ReceiveArgs, out: &mut Output) -> Outcome {
    let input = Input::open(args)?;
    if args.dump {
        return dump::run(input, out);
    }
    if let Some(dir) = &args.to_directory {
        return directory::run(global, input, dir, out);
    }
    let Some(volume) = args.volume.clone() else {
        return Err(Failure::new("VOLUME", "is missing").hint("name an image or a device"));
    };
    to_volume(global, input, &VolumeArgs { volume }, &text::bytes(&args.path), out)
}

fn to_volume(
    global: &GlobalArgs,
    mut input: Input,
    volume: &VolumeArgs,
    path: &[u8],
    out: &mut Output,
) -> Outcome {
    // A stream deletes, too, and may be larger than what one transaction can hold.
    let mut transaction = Transaction::open_to_delete(global, volume)?;
    let dir = transaction.find(path, Follow::Last)?;
    if transaction.stat(dir, path)?.kind != FileKind::Directory {
        return Err(failed(path, &butternut::Error::NotDirectory));
    }
    // A receive that was interrupted may have left a subvolume whose space is needed.
    let cleaned = transaction.filesystem().clean_subvolumes();
    cleaned.map_err(|error| transaction.failure(&error))?;
    let mut report = ReceiveReport::default();
    let (filesystem, end) = (transaction.filesystem(), input.end);
    let done = filesystem.receive_with(dir, &mut input.stream, end, &mut report);
    let done = done.map_err(|error| Failure::of(input.name.clone(), &error));
    if let Some(unfinished) = &report.unfinished {
        let at = text::escaped(&text::joined(path, &unfinished.name));
        let why = chain(&unfinished.error);
        stderr_line(&format!("{at}: the incomplete subvolume cannot be deleted: {why}"));
    }
    if report.subvolumes.is_empty() {
        // Nothing was made that a commit would keep.
        done?;
        note_empty(global, &input.name);
        let none = Vec::<Value>::new();
        return transaction.finish(global, out, |object| object.put("subvolumes", none));
    }
    for subvolume in &report.subvolumes {
        transaction.record("received", &text::joined(path, &subvolume.name));
    }
    let subvolumes: Vec<_> = report.subvolumes.iter().map(described).collect();
    transaction.finish_after(done, global, out, |object| object.put("subvolumes", subvolumes))
}

/// Says that a stream has made nothing. `btrfs receive` takes such a stream, too.
fn note_empty(global: &GlobalArgs, input: &str) {
    if !global.quiet {
        stderr_line(&format!("{input}: note: the stream has no subvolume"));
    }
}

fn described(subvolume: &ReceivedSubvolume) -> Value {
    let object = Object::new()
        .put("id", subvolume.id)
        .name("name", &subvolume.name)
        .uuid("received_uuid", &subvolume.uuid)
        .put("incremental", subvolume.is_snapshot);
    Value::from(object)
}

impl Input {
    fn open(args: &ReceiveArgs) -> Result<Self, Failure> {
        let (name, input): (String, Box<dyn Read>) = match &args.file {
            Some(path) => {
                let name = path.display().to_string();
                let file = File::open(path).map_err(|error| Failure::io(name.clone(), &error))?;
                (name, Box::new(file))
            }
            None => ("stdin".to_owned(), Box::new(stdin())),
        };
        // What follows the end command is left to the next reader of the input: a read that is not
        // smaller than the buffer bypasses it.
        let (end, buffer_bytes) = if args.end_command {
            (StreamEnd::Command, 1)
        } else {
            (StreamEnd::Input, INPUT_BYTES)
        };
        let stream = StreamReader::new(BufReader::with_capacity(buffer_bytes, input));
        Ok(Self { name, stream, end })
    }
}
