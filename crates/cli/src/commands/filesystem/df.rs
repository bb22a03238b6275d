//! `filesystem df`: shows space usage by block group type and profile.

use std::io::Write;

use super::groups::{DATA, METADATA, SYSTEM, kind, profile, sorted, units};
use crate::args::{GlobalArgs, UsageArgs};
use crate::commands::mounted::directory::MountedDirectory;
use crate::failure::{Completion, Outcome};
use crate::output::size::pretty;
use crate::output::{Output, json};
use crate::volume::OpenVolume;

const COMMAND: &str = "filesystem df";

pub(crate) fn run(global: &GlobalArgs, args: &UsageArgs, out: &mut Output) -> Outcome {
    let usage = if let Some(mounted) = MountedDirectory::open_only(&args.volume.volume)? {
        mounted.report(COMMAND)?.into_usage()
    } else {
        let opened = OpenVolume::from_args(global, &args.volume)?;
        opened.filesystem.usage().map_err(|error| opened.failure(&error))?
    };
    let mut lines: Vec<(&str, &str, u64, u64)> =
        sorted(&usage.groups, [DATA, SYSTEM, METADATA, DATA | METADATA])
            .iter()
            .map(|g| (kind(g.flags), profile(g.flags), g.total_bytes, g.used_bytes))
            .collect();
    lines.push(("GlobalReserve", "single", usage.global_reserve_bytes, 0));
    let units = units(&args.units);
    let mut list = json::List::default();
    for (kind, profile, total, used) in lines {
        if global.json {
            let object = json::Object::new()
                .put("type", kind)
                .put("profile", profile)
                .put("total_bytes", total)
                .put("used_bytes", used);
            list.push(out, object)?;
        } else {
            let (total, used) = (pretty(total, units), pretty(used, units));
            writeln!(out, "{kind}, {profile}: total={total}, used={used}")?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Completion::Success)
}
