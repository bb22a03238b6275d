//! Escapes untrusted text before it is printed: names of files and processes, mount tables, data
//! from a socket.
//!
//! A terminal interprets control characters, a log takes a line feed as the end of a message, and
//! directional characters can make one name look like another. This module escapes all of them.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file of `/proc` or `/sys`. Names in it may be any bytes: those that are not text are
/// replaced.
///
/// # Errors
/// The file cannot be read.
pub fn of_file(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// Reads at most `limit` bytes from the start of such a file.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn of_file_start(path: impl AsRef<Path>, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns `bytes` with everything escaped that a terminal would not show as itself, and
/// backslashes too, so that different bytes remain different.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                text.push_str("\\\\");
            } else {
                push(&mut text, c);
            }
        }
        for byte in chunk.invalid() {
            // Writing into a String cannot fail.
            write!(text, "\\x{byte:02x}").unwrap_or_default();
        }
    }
    text
}

/// Returns a message on one line, without control characters. Backslashes are kept, because names
/// in the message may be [`escaped`] already.
pub fn one_line(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    message.chars().for_each(|c| push(&mut text, c));
    text
}

/// Returns a text without control characters except its line feeds.
pub fn lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(one_line).collect();
    lines.join("\n")
}

fn push(text: &mut String, c: char) {
    match c {
        '\n' => text.push_str("\\n"),
        '\t' => text.push_str("\\t"),
        '\r' => text.push_str("\\r"),
        c if is_control(c) => text.extend(c.escape_unicode()),
        c => text.push(c),
    }
}

/// Returns whether a terminal does not show a character as itself.
pub fn is_control(c: char) -> bool {
    c.is_control() || is_format(c)
}

/// Directional and other format characters.
fn is_format(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || c == '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_lines_keeps_line_feeds() {
        let odd = "a\x1b[2J\u{9b}1m\u{202e}b\\n\nc\td";
        assert_eq!(escaped(odd.as_bytes()), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\\\n\\nc\\td");
        assert_eq!(one_line(odd), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\n\\nc\\td");
        assert_eq!(lines(odd), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\n\nc\\td");
        assert_eq!(escaped(b"\xff\x9b"), "\\xff\\x9b");
        assert_eq!(escaped("\u{e4}".as_bytes()), "\u{e4}");
    }
}
