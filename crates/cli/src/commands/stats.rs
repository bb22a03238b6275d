//! `stats`: shows the I/O statistics of a mounted volume.

use std::io::Write;

use crate::args::{GlobalArgs, StatsArgs};
use crate::control::{Format, Request, client};
use crate::failure::{Completion, Outcome};
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &StatsArgs, out: &mut Output) -> Outcome {
    let form = match (global.json, args.prometheus, args.explain) {
        (true, _, _) => Format::Json,
        (false, true, _) => Format::Prometheus,
        (false, false, true) => Format::Explained,
        (false, false, false) => Format::Text,
    };
    let answer = client::request("stats", &args.mountpoint, &Request::Stats { form })?;
    match answer.as_str() {
        Some(text) => out.write_all(text.as_bytes())?,
        None => json::document(out, answer)?,
    }
    Ok(Completion::Success)
}
