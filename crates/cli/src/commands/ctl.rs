//! `ctl`: shows and sets the tunables of a mounted volume.

use std::io::Write;

use butternut::Tunables;
use serde_json::Value;

use crate::args::{CtlArgs, GlobalArgs};
use crate::control::{Request, client};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, text};

pub(crate) fn run(global: &GlobalArgs, args: &CtlArgs, out: &mut Output) -> Outcome {
    let send = |question| client::request("ctl", &args.mountpoint, &question);
    let word = args.tunable.as_deref();
    let set = word.and_then(|word| word.split_once('='));
    let answer = match set {
        Some((key, value)) => {
            // An invalid setting is refused before the request is sent.
            let known = Tunables::default().set_named(key, value);
            known.map_err(|error| Failure::new("ctl", error.to_string()))?;
            send(Request::Set { key: key.to_owned(), value: value.to_owned() })?
        }
        None => send(Request::Tunables)?,
    };
    let Value::Array(mut tunables) = answer else { return Ok(Completion::Success) };
    let Some(word) = word else {
        if global.json {
            json::document(out, tunables)?;
        } else {
            table(out, &tunables)?;
        }
        return Ok(Completion::Success);
    };
    let key = set.map_or(word, |(key, _)| key);
    tunables.retain(|tunable| tunable["key"] == key);
    let Some(tunable) = tunables.pop() else {
        let known = Tunables::default().find_named(key).map(drop);
        let why = known.map_or_else(|error| error.to_string(), |()| "no such tunable".to_owned());
        return Err(Failure::new("ctl", why));
    };
    if global.json {
        json::document(out, tunable)?;
    } else if set.is_none() {
        writeln!(out, "{}", shown(&tunable["value"]))?;
    }
    Ok(Completion::Success)
}

/// Prints each tunable with its value, its allowed values and its description. The columns are wide
/// enough for every allowed value, so that a change of value moves no column.
fn table(out: &mut Output, tunables: &[Value]) -> std::io::Result<()> {
    let allowed = |tunable: &Value| -> Vec<String> {
        let values = tunable["allowed"].as_array().into_iter().flatten();
        values.map(shown).collect()
    };
    let setting = |tunable: &Value, value: &str| format!("{}={value}", shown(&tunable["key"]));
    let words = |tunable: &Value| {
        let widths = allowed(tunable).into_iter().map(|value| setting(tunable, &value).len());
        widths.max().unwrap_or_default()
    };
    let first = tunables.iter().map(words).max().unwrap_or_default();
    let second = tunables.iter().map(|tunable| allowed(tunable).join("|").len());
    let second = second.max().unwrap_or_default();
    for tunable in tunables {
        let set = setting(tunable, &shown(&tunable["value"]));
        let (allowed, what) = (allowed(tunable).join("|"), shown(&tunable["what"]));
        writeln!(out, "{set:<first$}  {allowed:<second$}  {what}")?;
    }
    Ok(())
}

/// Returns a string of the response as one line.
fn shown(value: &Value) -> String {
    text::one_line(value.as_str().unwrap_or_default())
}
