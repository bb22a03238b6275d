//! Text of strangers, made safe to print: file names, names of processes, mount tables, what comes
//! over a socket.
//!
//! A terminal obeys control characters, a log takes a line feed for the end of a message, and
//! directional characters make one name look like another. All of them are escaped here.

use std::fmt::Write;

/// Returns `bytes` with everything escaped that a terminal would not show as itself, backslashes
/// too: different bytes stay different.
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

/// Returns a message in one line that drives no terminal. Backslashes stay as they are, for names
/// in the message may be [`escaped`] already.
pub fn one_line(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    message.chars().for_each(|c| push(&mut text, c));
    text
}

/// Returns a text that drives no terminal; it keeps its lines.
pub fn lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(one_line).collect();
    lines.join("\n")
}

fn push(text: &mut String, c: char) {
    match c {
        '\n' => text.push_str("\\n"),
        '\t' => text.push_str("\\t"),
        '\r' => text.push_str("\\r"),
        c if c.is_control() || is_format(c) => text.extend(c.escape_unicode()),
        c => text.push(c),
    }
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
    fn what_drives_a_terminal_is_escaped_and_lines_are_kept_where_they_are_wanted() {
        let odd = "a\x1b[2J\u{9b}1m\u{202e}b\\n\nc\td";
        assert_eq!(escaped(odd.as_bytes()), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\\\n\\nc\\td");
        assert_eq!(one_line(odd), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\n\\nc\\td");
        assert_eq!(lines(odd), "a\\u{1b}[2J\\u{9b}1m\\u{202e}b\\n\nc\\td");
        assert_eq!(escaped(b"\xff\x9b"), "\\xff\\x9b");
        assert_eq!(escaped("\u{e4}".as_bytes()), "\u{e4}");
    }
}
