//! Values of extended attributes as text, in the formats of setfattr(1) and getfattr(1).
//!
//! | format | meaning |
//! |---|---|
//! | `0x...` | hex digits |
//! | `0s...` | base64 |
//! | `"..."` | text, with the escapes `\"`, `\\` and `\NNN` (octal) |
//! | anything else | text without escapes |

use std::fmt::Write;

use crate::args::Encoding;
use crate::output::{base64, text};

/// Parses a value. Returns `None` if it is malformed.
pub(super) fn parse(typed: &[u8]) -> Option<Vec<u8>> {
    if let Some(digits) = typed.strip_prefix(b"0x").or_else(|| typed.strip_prefix(b"0X")) {
        return from_hex(digits);
    }
    if let Some(digits) = typed.strip_prefix(b"0s").or_else(|| typed.strip_prefix(b"0S")) {
        return base64::read(digits);
    }
    match typed.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) {
        Some(quoted) => unescape(quoted),
        None => Some(typed.to_vec()),
    }
}

/// Formats a value so that [`parse`] returns it again.
pub(super) fn format(value: &[u8], encoding: Option<Encoding>) -> String {
    let is_text = |text: &str| !text.chars().any(text::is_control);
    let is_plain = std::str::from_utf8(value).is_ok_and(is_text);
    match encoding.unwrap_or(if is_plain { Encoding::Text } else { Encoding::Hex }) {
        Encoding::Hex => format!("0x{}", text::hex(value)),
        Encoding::Base64 => format!("0s{}", base64::text(value)),
        Encoding::Text => format!("\"{}\"", escape(value)),
    }
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

fn unescape(quoted: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(quoted.len());
    let mut rest = quoted;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                value.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            (b'\\', [escaped @ (b'\\' | b'"'), tail @ ..]) => {
                value.push(*escaped);
                rest = tail;
            }
            (b'\\' | b'"', _) => return None,
            (plain, _) => value.push(*plain),
        }
    }
    Some(value)
}

fn escape(value: &[u8]) -> String {
    let mut shown = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' | '"' => shown.extend(['\\', c]),
                c if text::is_control(c) => {
                    octal(&mut shown, c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                c => shown.push(c),
            }
        }
        octal(&mut shown, chunk.invalid());
    }
    shown
}

fn octal(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing into a String cannot fail.
        write!(text, "\\{byte:03o}").unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_through_every_encoding() {
        let all: Vec<u8> = (0..=255).collect();
        for value in
            [&b""[..], b"bar", b"a \"b\" \\c", b"\0\n", "\u{e9}".as_bytes(), b"\xff7", &all]
        {
            for encoding in [Encoding::Text, Encoding::Hex, Encoding::Base64] {
                let shown = format(value, Some(encoding));
                assert_eq!(parse(shown.as_bytes()).as_deref(), Some(value), "{shown}");
            }
            assert_eq!(parse(format(value, None).as_bytes()).as_deref(), Some(value));
        }
        assert_eq!(format(b"bar", None), "\"bar\"");
        assert_eq!(format(b"\x01", None), "0x01");
    }

    #[test]
    fn malformed_values_are_refused() {
        for typed in [&b"0x1"[..], b"0xzz", b"0s!", b"0sQQ", b"\"a\\\"", b"\"a\"b\""] {
            assert_eq!(parse(typed), None, "{typed:?}");
        }
        assert_eq!(parse(b"plain \\ text"), Some(b"plain \\ text".to_vec()));
        assert_eq!(parse(b""), Some(Vec::new()));
    }
}
