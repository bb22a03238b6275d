//! `ctl`: shows and sets the switches of a mount.

use std::io::Write;

use butternut::Switches;
use serde_json::Value;

use crate::control::{Question, client};
use crate::failure::{Done, Failure, Outcome};
use crate::flags::{CtlArgs, GlobalArgs};
use crate::output::{Output, json};

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
            for switch in &switches {
                line(out, switch)?;
            }
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
        writeln!(out, "{}", text(&switch["value"]))?;
    }
    Ok(Done::Well)
}

/// A switch, its value, what else it may have, and what it is for.
fn line(out: &mut Output, switch: &Value) -> std::io::Result<()> {
    let allowed: Vec<&str> = switch["allowed"].as_array().into_iter().flatten().map(text).collect();
    let word = format!("{}={}", text(&switch["key"]), text(&switch["value"]));
    let (allowed, what) = (allowed.join("|"), text(&switch["what"]));
    writeln!(out, "{word:<20}  {allowed:<22}  {what}")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
