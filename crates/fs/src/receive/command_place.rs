//! [`CommandPlace`]: where a command is in the input, for messages.

use std::fmt;

/// The place of a command in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandPlace {
    /// The number of the command, from 1; 0 for the header of a stream.
    pub number: u64,
    /// Offset of its first byte.
    pub offset: u64,
}

impl fmt::Display for CommandPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "header of the stream at byte {}", self.offset),
            number => write!(f, "command {number} at byte {}", self.offset),
        }
    }
}
