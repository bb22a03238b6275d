//! The stream that `receive` reads: a file, or stdin.

use std::fs::File;
use std::io::{BufReader, stdin};
use std::os::fd::AsFd;

use butternut::receive::{StreamEnd, StreamReader};

use super::interrupt::{Interrupt, InterruptibleFile};
use crate::args::{GlobalArgs, ReceiveArgs};
use crate::failure::Failure;
use crate::output::stderr_line;

/// Size of the buffer for the input in bytes.
const INPUT_BYTES: usize = 256 << 10;

/// The stream that a command reads, with its name for messages.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) stream: StreamReader<BufReader<InterruptibleFile>>,
    pub(super) end: StreamEnd,
}

impl Input {
    /// Opens the input that `args` name. With `interrupt`, a signal ends it.
    pub(super) fn open(args: &ReceiveArgs, interrupt: Option<Interrupt>) -> Result<Self, Failure> {
        let name = args.file.as_ref().map(|path| path.display().to_string());
        let name = name.unwrap_or_else(|| "stdin".to_owned());
        let opened = if let Some(path) = &args.file {
            File::open(path)
        } else {
            // Not `Stdin` itself, which reads ahead into a buffer of its own.
            stdin().as_fd().try_clone_to_owned().map(File::from)
        };
        let file = opened.map_err(|error| Failure::io(name.clone(), &error))?;
        let signals = interrupt.clone();
        let input = InterruptibleFile { file, interrupt };
        // What follows the end command is left to the next reader of the input: a read that is not
        // smaller than the buffer bypasses it.
        let (end, buffer_bytes) = if args.end_command {
            (StreamEnd::Command, 1)
        } else {
            (StreamEnd::Input, INPUT_BYTES)
        };
        let stream = StreamReader::new(BufReader::with_capacity(buffer_bytes, input));
        let goes_on = move || signals.as_ref().is_none_or(|it| it.signal().is_none());
        let stream = stream.end_unless(goes_on);
        Ok(Self { name, stream, end })
    }

    /// Says that the stream has made nothing. `btrfs receive` takes such a stream, too.
    pub(super) fn note_empty(&self, global: &GlobalArgs) {
        if !global.quiet {
            stderr_line(&format!("{}: note: the stream has no subvolume", self.name));
        }
    }
}
