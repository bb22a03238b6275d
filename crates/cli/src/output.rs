//! Output to stdout and stderr.
//!
//! Only requested data is written to stdout; messages are written to stderr. If the reader of
//! stdout closes the pipe, the command ends without a message; where the output is a file or a
//! stream (`cat`, `send`), the status is then not 0. In a process that serves a mount,
//! [`reporter`] writes the messages.

pub(crate) mod base64;
pub(crate) mod json;
pub(crate) mod notes;
pub(crate) mod reporter;
pub(crate) mod size;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod time;

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

/// Buffered stdout, and whether it is a terminal.
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

    /// Returns a name as it is printed: escaped on a terminal, unchanged elsewhere.
    pub(crate) fn display_name(&self, name: &[u8]) -> Vec<u8> {
        text::name(name, self.is_terminal)
    }

    /// Writes `bytes` and a newline.
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

/// Writes one line to stderr. It may contain text from a process, a mount table or a socket of
/// another user, so newlines and control characters are escaped. A failed write is ignored: there
/// is nowhere to report it.
pub(crate) fn stderr_line(line: &str) {
    stderr_lines(&text::one_line(line));
}

/// Writes a text of several lines to stderr. It must not contain text from other users.
pub(crate) fn stderr_lines(text: &str) {
    let text = format!("butternut: {}\n", text::lines(text));
    if !reporter::queue_for_stderr(&text) {
        io::stderr().write_all(text.as_bytes()).unwrap_or_default();
    }
}
