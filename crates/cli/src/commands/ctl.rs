//! `ctl`: shows and sets the switches of a mount.

use std::io::Write;

use butternut::Switches;
use serde_json::Value;

use crate::control::{Question, client};
use crate::failure::{Done, Failure, Outcome};
use crate::flags::{CtlArgs, GlobalArgs};
use crate::output::{Output, json, text};

pub(crate) fn run(global: &GlobalArgs, args: &CtlArgs, out: &mut Output) -> Outcome {
    let ask = |question| client::ask("ctl", &args.mountpoint, &question);
    let word = args.switch.as_deref();
    let set = word.and_then(|word| word.split_once('='));
    let answer = match set {
        Some((key, value)) => {
            // What is wrong is said before the mount is asked.
            let known = Switches::default().set_named(key, value);
            known.map_err(|error| Failure::new("ctl", error.to_string()))?;
            ask(Question::Set { key: key.to_owned(), value: value.to_owned() })?
        }
        None => ask(Question::Switches)?,
    };
    let Value::Array(mut switches) = answer else { return Ok(Done::Well) };
    let Some(word) = word else {
        if global.json {
            json::document(out, switches)?;
        } else {
            table(out, &switches)?;
        }
        return Ok(Done::Well);
    };
    let key = set.map_or(word, |(key, _)| key);
    switches.retain(|switch| switch["key"] == key);
    let Some(switch) = switches.pop() else {
        let known = Switches::default().find_named(key).map(drop);
        let why = known.map_or_else(|error| error.to_string(), |()| "no such switch".to_owned());
        return Err(Failure::new("ctl", why));
    };
    if global.json {
        json::document(out, switch)?;
    } else if set.is_none() {
        writeln!(out, "{}", shown(&switch["value"]))?;
    }
    Ok(Done::Well)
}

/// Each switch with its value, what else it may have, and what it is for. The columns are as wide
/// as the longest that may stand in them.
fn table(out: &mut Output, switches: &[Value]) -> std::io::Result<()> {
    let allowed = |switch: &Value| -> Vec<String> {
        let values = switch["allowed"].as_array().into_iter().flatten();
        values.map(shown).collect()
    };
    let setting = |switch: &Value, value: &str| format!("{}={value}", shown(&switch["key"]));
    let words = |switch: &Value| {
        let widths = allowed(switch).into_iter().map(|value| setting(switch, &value).len());
        widths.max().unwrap_or_default()
    };
    let first = switches.iter().map(words).max().unwrap_or_default();
    let second = switches.iter().map(|switch| allowed(switch).join("|").len());
    let second = second.max().unwrap_or_default();
    for switch in switches {
        let set = setting(switch, &shown(&switch["value"]));
        let (allowed, what) = (allowed(switch).join("|"), shown(&switch["what"]));
        writeln!(out, "{set:<first$}  {allowed:<second$}  {what}")?;
    }
    Ok(())
}

/// A string of the answer, in one line.
fn shown(value: &Value) -> String {
    text::one_line(value.as_str().unwrap_or_default())
}
