//! `stats`: what a mount has counted of itself.

use std::io::Write;

use crate::control::{Form, Question, client};
use crate::failure::{Done, Outcome};
use crate::flags::{GlobalArgs, StatsArgs};
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &StatsArgs, out: &mut Output) -> Outcome {
    let form = match (global.json, args.prometheus) {
        (true, _) => Form::Json,
        (false, true) => Form::Prometheus,
        (false, false) => Form::Text,
    };
    let answer = client::ask("stats", &args.mountpoint, &Question::Stats { form })?;
    match answer.as_str() {
        Some(text) => out.write_all(text.as_bytes())?,
        None => json::document(out, answer)?,
    }
    Ok(Done::Well)
}
