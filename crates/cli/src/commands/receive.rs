//! `receive`: makes the subvolumes of a send stream, in a volume or in a plain directory, or prints
//! the commands of the stream.

mod directory;
mod dump;
mod input;

use butternut::receive::{ReceiveReport, ReceivedSubvolume};
use butternut::{FileKind, Follow};
use input::Input;
use serde_json::Value;

use super::transaction::{Transaction, failed};
use crate::args::{GlobalArgs, ReceiveArgs, VolumeArgs};
use crate::failure::{Failure, Outcome, chain};
use crate::output::json::Object;
use crate::output::{Output, stderr_line, text};

/// With --resume, how many bytes of the stream may have to be applied again.
const CHECKPOINT_BYTES: u64 = 64 << 20;

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
    let volume = VolumeArgs { volume };
    to_volume(global, args.resume, input, &volume, &text::bytes(&args.path), out)
}

fn to_volume(
    global: &GlobalArgs,
    is_resumed: bool,
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
    let stream = &mut input.stream;
    let done = if is_resumed {
        filesystem.receive_resumable(dir, stream, end, CHECKPOINT_BYTES, &mut report)
    } else {
        filesystem.receive_with(dir, stream, end, &mut report)
    };
    let done = done.map_err(|error| {
        let failure = Failure::of(input.name.clone(), &error);
        match report.resumable {
            Some(count) => failure.hint(format!("{count} commands are kept; repeat it to go on")),
            None => failure,
        }
    });
    if let Some(unfinished) = &report.unfinished {
        let at = text::escaped(&text::joined(path, &unfinished.name));
        let why = chain(&unfinished.error);
        stderr_line(&format!("{at}: the incomplete subvolume cannot be deleted: {why}"));
    }
    if report.subvolumes.is_empty() {
        // Nothing was made that a commit would keep.
        done?;
        if report.present == 0 {
            input.note_empty(global);
        }
        let none = Vec::<Value>::new();
        return transaction.finish(global, out, |object| object.put("subvolumes", none));
    }
    for subvolume in &report.subvolumes {
        transaction.record("received", &text::joined(path, &subvolume.name));
    }
    let subvolumes: Vec<_> = report.subvolumes.iter().map(described).collect();
    transaction.finish_after(done, global, out, |object| object.put("subvolumes", subvolumes))
}

fn described(subvolume: &ReceivedSubvolume) -> Value {
    let object = Object::new()
        .put("id", subvolume.id)
        .name("name", &subvolume.name)
        .uuid("received_uuid", &subvolume.uuid)
        .put("incremental", subvolume.is_snapshot);
    Value::from(object)
}
