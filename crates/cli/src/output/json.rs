//! JSON output of every command with `--json`.
//!
//! 1. A run prints one document that ends in a newline. Lists are written element by element.
//! 2. A name is a string. A name that is not valid UTF-8 is followed by its exact bytes in
//!    hexadecimal, under the same key with `_bytes` appended.
//! 3. A character that may control a terminal is written as `\uXXXX`, which has the same value.
//! 4. Sizes are in bytes; times are `{"secs", "nanos"}` since 1970.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::text;
use crate::failure::Failure;

/// An object whose keys keep the order of insertion.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Object(Map<String, Value>);

impl Object {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn put(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.insert(key.to_owned(), value.into());
        self
    }

    /// Adds a name (law 2).
    pub(crate) fn name(mut self, key: &str, name: &[u8]) -> Self {
        self.0.insert(key.to_owned(), String::from_utf8_lossy(name).into_owned().into());
        if std::str::from_utf8(name).is_err() {
            self.0.insert(format!("{key}_bytes"), text::hex(name).into());
        }
        self
    }

    pub(crate) fn time(self, key: &str, time: butternut::Time) -> Self {
        self.put(key, json!({ "secs": time.secs, "nanos": time.nanos }))
    }

    /// Adds a UUID, or null if it is all zeros.
    pub(crate) fn uuid(self, key: &str, uuid: &[u8; 16]) -> Self {
        let text = text::uuid_or_dash(uuid);
        self.put(key, if text == "-" { Value::Null } else { text.into() })
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object.0)
    }
}

/// Prints the document of a command that has changed something. If it cannot be written, the error
/// says what has been done all the same.
pub(crate) fn result(out: &mut dyn Write, object: Object, done: &str) -> Result<(), Failure> {
    let printed = document(out, object).and_then(|()| out.flush());
    printed.map_err(|error| Failure::from(error).hint(done))
}

/// Prints one document.
pub(crate) fn document(out: &mut dyn Write, value: impl Into<Value>) -> io::Result<()> {
    writeln!(out, "{}", escaped(&serde_json::to_string_pretty(&value.into())?))
}

/// Returns a value as JSON in one line (law 3).
pub(crate) fn line(value: &Value) -> String {
    escaped(&value.to_string())
}

/// Escapes what may control a terminal in JSON text (law 3). All such characters but the line feeds
/// of the form are in strings: the rest of the text is ASCII.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for found in json.chars() {
        if found == '\n' || !text::is_control(found) {
            text.push(found);
            continue;
        }
        for unit in found.encode_utf16(&mut [0; 2]) {
            // Writing into a String cannot fail.
            write!(text, "\\u{unit:04x}").unwrap_or_default();
        }
    }
    text
}

/// A list that is printed element by element.
#[derive(Debug, Default)]
pub(crate) struct List {
    any: bool,
}

impl List {
    pub(crate) fn push(&mut self, out: &mut dyn Write, value: impl Into<Value>) -> io::Result<()> {
        out.write_all(if self.any { b",\n  " } else { b"[\n  " })?;
        self.any = true;
        out.write_all(line(&value.into()).as_bytes())
    }

    pub(crate) fn end(self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(if self.any { b"\n]\n" } else { b"[]\n" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_utf8_keep_their_bytes() {
        let value: Value = Object::new().name("name", b"a\xff").into();
        assert_eq!(value["name"], "a\u{fffd}");
        assert_eq!(value["name_bytes"], "61ff");
        let plain: Value = Object::new().name("name", b"a").into();
        assert_eq!(plain, json!({ "name": "a" }));
    }

    #[test]
    fn lists_of_any_length_are_valid_json() {
        for count in 0..3 {
            let mut out = Vec::new();
            let mut list = List::default();
            for _ in 0..count {
                list.push(&mut out, json!({ "a": 1 })).unwrap();
            }
            list.end(&mut out).unwrap();
            let value: Value = serde_json::from_slice(&out).unwrap();
            assert_eq!(value.as_array().unwrap().len(), count);
        }
    }

    /// A terminal takes U+009B as ESC [ also in UTF-8, and U+202E reverses what follows.
    #[test]
    fn names_in_json_do_not_control_a_terminal() {
        let name = "a\u{9b}2J\u{85}\u{7f}\u{202e}\u{2028}b";
        let (mut out, mut list) = (Vec::new(), List::default());
        list.push(&mut out, Object::new().name(name, name.as_bytes())).unwrap();
        list.end(&mut out).unwrap();
        document(&mut out, Object::new().name("path", name.as_bytes())).unwrap();
        let text = String::from_utf8(out).unwrap();
        let is_bad =
            |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{202e}' | '\u{2028}');
        assert!(!text.contains(is_bad), "{text:?}");
        // The value is the same.
        let document: Value = serde_json::from_str(&text[text.rfind('{').unwrap()..]).unwrap();
        assert_eq!(document["path"], name);
    }
}
