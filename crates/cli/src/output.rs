//! What goes to stdout and stderr, and how.
//!
//! Stdout gets what was asked for and nothing else; everything else goes to stderr. A reader that
//! closes the pipe ends the command quietly.

pub(crate) mod base64;
pub(crate) mod json;
pub(crate) mod size;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

/// Stdout, buffered, and whether a person reads it.
pub(crate) struct Output {
    stdout: BufWriter<StdoutLock<'static>>,
    pub(crate) is_terminal: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { stdout: BufWriter::with_capacity(64 << 10, stdout.lock()), is_terminal }
    }

    /// A name as this reader wants it.
    pub(crate) fn shown(&self, name: &[u8]) -> Vec<u8> {
        text::name(name, self.is_terminal)
    }

    /// A line of bytes.
    pub(crate) fn line(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)?;
        self.stdout.write_all(b"\n")
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stdout.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stdout.flush()
    }
}

/// Writes a line to stderr. What is in it may come from a process, a mount table or a socket of
/// another user, so it is one line, and drives no terminal. A stderr that cannot be written to is
/// nobody's to tell.
pub(crate) fn say(line: &str) {
    say_lines(&text::one_line(line));
}

/// Writes a text of more than one line, all of it ours or the caller's, to stderr.
pub(crate) fn say_lines(text: &str) {
    writeln!(io::stderr(), "butternut: {}", text::lines(text)).unwrap_or_default();
}
