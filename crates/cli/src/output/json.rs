//! JSON: what every command prints under `--json`.
//!
//! 1. One document per run, ending in a newline; lists are written as they are found.
//! 2. A name is a string; one that is not UTF-8 has its exact bytes beside it in hex, under the
//!    same key with `_bytes` added, so nothing is lost.
//! 3. Sizes are bytes, times are `{"secs", "nanos"}` from 1970.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::text;

/// An object whose keys keep the order in which they were put.
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

    /// A name: law 2.
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

    /// A UUID, null where it is zeros.
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

/// Prints one document.
pub(crate) fn document(out: &mut dyn Write, value: impl Into<Value>) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &value.into())?;
    out.write_all(b"\n")
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
        serde_json::to_writer(&mut *out, &value.into())?;
        Ok(())
    }

    pub(crate) fn end(self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(if self.any { b"\n]\n" } else { b"[]\n" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_utf8_keeps_its_bytes() {
        let value: Value = Object::new().name("name", b"a\xff").into();
        assert_eq!(value["name"], "a\u{fffd}");
        assert_eq!(value["name_bytes"], "61ff");
        let plain: Value = Object::new().name("name", b"a").into();
        assert_eq!(plain, json!({ "name": "a" }));
    }

    #[test]
    fn lists_are_valid_json_however_long() {
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
}
