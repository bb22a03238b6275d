//! `receive`: makes the subvolumes of a send stream, in a volume or in a plain directory, or prints
//! the commands of the stream.

mod directory;
mod dump;
mod dump_json;
mod input;
mod interrupt;
mod mounted;

use std::io::Write;
use std::path::Path;

use butternut::receive::{ReceiveReport, ReceivedSubvolume};
use butternut::{FileKind, Follow};
use input::Input;
use interrupt::Interrupt;
use serde_json::Value;

use super::mounted::directory::MountedDirectory;
use super::mounted::usage;
use super::transaction::{Transaction, failed};
use crate::args::{GlobalArgs, ReceiveArgs, VolumeArgs};
use crate::control::receive::CHECKPOINT_BYTES;
use crate::failure::{Failure, Outcome, chain};
use crate::output::json::Object;
use crate::output::text::counted;
use crate::output::{Output, reporter, stderr_line, text};
use crate::volume::stream;

pub(crate) fn run(global: &GlobalArgs, args: &ReceiveArgs, out: &mut Output) -> Outcome {
    if args.dump {
        return dump::run(global, Input::open(args, None)?, out);
    }
    if let Some(dir) = &args.to_directory {
        return directory::run(global, Input::open(args, None)?, dir, out);
    }
    let Some(volume) = args.volume.clone() else {
        return Err(Failure::new("VOLUME", "is missing").hint("name an image or a device"));
    };
    if let Some(mounted) = MountedDirectory::open(&volume)? {
        if args.path.is_some() {
            return Ok(usage("of a mounted volume, name the directory alone: MOUNT/PATH"));
        }
        let interrupt = Interrupt::start()?;
        let input = Input::open(args, Some(interrupt.clone()))?;
        let done = mounted::run(global, &mounted, args.resume, (input, &interrupt), out);
        return finish(&interrupt, done, out);
    }
    let volume = VolumeArgs { volume };
    refuse_stream(args, &volume)?;
    let interrupt = Interrupt::start()?;
    let input = Input::open(args, Some(interrupt.clone()))?;
    let path = args.path.as_ref().map_or_else(|| b"/".to_vec(), text::bytes);
    let done = to_volume(global, args.resume, input, &interrupt, (&volume, &path), out);
    finish(&interrupt, done, out)
}

/// Ends the process if a signal has ended the receive.
fn finish(interrupt: &Interrupt, done: Outcome, out: &mut Output) -> Outcome {
    if let (Some(_), Err(failure)) = (interrupt.signal(), &done) {
        // Output that cannot be written is not why the process ends.
        out.flush().unwrap_or_default();
        stderr_line(&failure.to_string());
        reporter::flush();
        interrupt.end_process();
    }
    done
}

/// Refuses a send stream in the place of the volume.
fn refuse_stream(args: &ReceiveArgs, volume: &VolumeArgs) -> Result<(), Failure> {
    let arg = crate::volume::parse_arg(std::slice::from_ref(&volume.volume))?;
    if args.file.is_some() || !stream::is_named(&arg)? {
        return Ok(());
    }
    let path = args.path.as_deref().map(Path::new).filter(|path| path.is_file());
    let target = path.map_or_else(|| "VOLUME".to_owned(), |path| path.display().to_string());
    let hint = format!("`butternut receive -f {} {target}` receives it", arg.typed);
    Err(Failure::new(arg.typed, "is a send stream, not a volume").hint(hint))
}

fn to_volume(
    global: &GlobalArgs,
    is_resumed: bool,
    mut input: Input,
    interrupt: &Interrupt,
    (volume, path): (&VolumeArgs, &[u8]),
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
            Some(count) => failure.hint(kept(count)),
            None if interrupt.signal().is_some() && report.unfinished.is_none() => {
                failure.hint("no incomplete subvolume is left; --resume would keep it")
            }
            None => failure,
        }
    });
    for name in report.changed.iter().filter(|_| !global.quiet) {
        note_changed(&text::escaped(&text::joined(path, name)));
    }
    if let Some(unfinished) = &report.unfinished {
        let at = text::escaped(&text::joined(path, &unfinished.name));
        let why = chain(&unfinished.error);
        stderr_line(&format!("{at}: the incomplete subvolume cannot be deleted: {why}"));
    }
    if global.verbose && !global.json && report.present > 0 {
        note_present(&input.name, report.present);
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
    let subvolumes = report.subvolumes.iter().map(|subvolume| {
        let ReceivedSubvolume { id, name, uuid, is_snapshot, .. } = subvolume;
        described(*id, name, uuid, *is_snapshot)
    });
    let subvolumes: Vec<_> = subvolumes.collect();
    transaction.finish_after(done, global, out, |object| object.put("subvolumes", subvolumes))
}

/// Says that a snapshot of an interrupted receive is not what that receive has made.
fn note_changed(at: &str) {
    let why = "is not as an interrupted receive of this version has left it, so it is not used";
    stderr_line(&format!("{at}: note: {why} (delete it if nothing in it is needed)"));
}

/// Says how many subvolumes of a stream need not be received.
fn note_present(stream: &str, count: usize) {
    let are = counted(count, "subvolume is", "subvolumes are");
    stderr_line(&format!("{stream}: {are} complete already"));
}

/// Describes the commands of a receive that can be resumed.
fn kept(count: u64) -> String {
    let kept = counted(count, "command is", "commands are");
    format!("{kept} kept; repeat it to go on")
}

fn described(id: u64, name: &[u8], uuid: &[u8; 16], is_snapshot: bool) -> Value {
    let object = Object::new()
        .put("id", id)
        .name("name", name)
        .uuid("received_uuid", uuid)
        .put("incremental", is_snapshot);
    Value::from(object)
}
