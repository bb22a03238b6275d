//! The stream that `receive` reads: a file, or stdin.

use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::os::fd::AsFd;

use butternut::receive::{StreamEnd, StreamReader};

use crate::args::{GlobalArgs, ReceiveArgs};
use crate::failure::Failure;
use crate::output::stderr_line;

/// Size of the buffer for the input in bytes.
const INPUT_BYTES: usize = 256 << 10;

/// The stream that a command reads, with its name for messages.
pub(super) struct Input {
    pub(super) name: String,
    pub(super) stream: StreamReader<BufReader<Box<dyn Read>>>,
    pub(super) end: StreamEnd,
}

impl Input {
    pub(super) fn open(args: &ReceiveArgs) -> Result<Self, Failure> {
        let (name, input): (String, Box<dyn Read>) = match &args.file {
            Some(path) => {
                let name = path.display().to_string();
                let file = File::open(path).map_err(|error| Failure::io(name.clone(), &error))?;
                (name, Box::new(file))
            }
            None => {
                let name = "stdin".to_owned();
                // Not `Stdin` itself, which reads ahead into a buffer of its own.
                let input = stdin().as_fd().try_clone_to_owned();
                let input = input.map_err(|error| Failure::io(name.clone(), &error))?;
                (name, Box::new(File::from(input)))
            }
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

    /// Says that the stream has made nothing. `btrfs receive` takes such a stream, too.
    pub(super) fn note_empty(&self, global: &GlobalArgs) {
        if !global.quiet {
            stderr_line(&format!("{}: note: the stream has no subvolume", self.name));
        }
    }
}
