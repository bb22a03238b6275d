//! `qgroup show`, in the format of `btrfs qgroup show`, and the commands that change quota groups.

mod selection;

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::format::quota::QgroupId;

use super::filesystem::{groups::units, sync};
use super::mounted::{self, root_tree::MountedVolume};
use super::quota::{change, report};
use crate::args::{
    GlobalArgs, QgroupCommand, QgroupLimitArgs, QgroupShowArgs, VolumeArgs, parse_bytes,
};
use crate::control::quotas::{GroupReport, GroupSubvolume, QuotaChange, QuotaReport};
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::pretty;
use crate::output::{Output, json, stderr_line, text};
use crate::volume::OpenVolume;

/// A column of the table: its heading, the width that it has at least, and its cells.
struct Column {
    heading: &'static str,
    width_min: usize,
    is_left: bool,
    cells: Vec<String>,
}

pub(crate) fn run(global: &GlobalArgs, command: &QgroupCommand, out: &mut Output) -> Outcome {
    match command {
        QgroupCommand::Show(args) => show(global, args, out),
        QgroupCommand::Create(args) => {
            let group = parse(&args.group)?;
            change(global, &args.volume, out, QuotaChange::Create { group })
        }
        QgroupCommand::Destroy(args) => {
            let group = parse(&args.group)?;
            change(global, &args.volume, out, QuotaChange::Remove { group })
        }
        QgroupCommand::Assign(args) => {
            let args = &args.pair;
            let (child, parent) = (parse(&args.child)?, parse(&args.parent)?);
            change(global, &args.volume, out, QuotaChange::Assign { child, parent })
        }
        QgroupCommand::Limit(args) => limit(global, args, out),
        QgroupCommand::Remove(args) => {
            let (child, parent) = (parse(&args.child)?, parse(&args.parent)?);
            change(global, &args.volume, out, QuotaChange::Unassign { child, parent })
        }
    }
}

fn limit(global: &GlobalArgs, args: &QgroupLimitArgs, out: &mut Output) -> Outcome {
    let (group, volume) = match args.group_and_volume.as_slice() {
        [volume, path] if Path::new(volume).exists() => {
            let (volume, path) = (text::escaped(volume.as_bytes()), text::escaped(path.as_bytes()));
            return Err(Failure::usage(&volume, "not a quota group").hint(format!(
                "name it LEVEL/NUMBER, for example 1/100; a subvolume is {volume}@{path}, or \
                 MOUNT/{path}"
            )));
        }
        [group, volume] => (parse(&group.to_string_lossy())?, volume),
        [volume] => (subvolume_at(global, volume)?, volume),
        _ => return Err(Failure::new("qgroup limit", "no volume is named")),
    };
    let volume = VolumeArgs { volume: volume.clone() };
    let bytes = match args.size.as_str() {
        "none" => None,
        typed => Some(parse_bytes("SIZE", typed)?),
    };
    let is_exclusive = args.exclusive;
    change(global, &volume, out, QuotaChange::Limit { group, is_exclusive, bytes })
}

/// Returns the group of the subvolume that an argument names: its id.
fn subvolume_at(global: &GlobalArgs, argument: &OsString) -> Result<u64, Failure> {
    if mounted::is_directory(argument) {
        let volume = MountedVolume::open(Path::new(argument))?;
        if !volume.is_subvolume()? {
            return Err(not_a_subvolume(argument.as_bytes()));
        }
        return volume.id();
    }
    let volume = VolumeArgs { volume: argument.clone() };
    Ok(OpenVolume::from_arg(global, &volume)?.filesystem.root().subvolume)
}

/// Parses the quota groups of a new subvolume.
pub(crate) fn parse_all(typed: &[String]) -> Result<Vec<QgroupId>, Failure> {
    typed.iter().map(|typed| parse(typed).map(QgroupId)).collect()
}

/// Parses LEVEL/NUMBER.
fn parse(typed: &str) -> Result<u64, Failure> {
    let parts = typed.split_once('/');
    let parsed = parts.and_then(|(level, number)| {
        let (level, number) = (level.parse::<u16>().ok()?, number.parse::<u64>().ok()?);
        QgroupId::of(level, number).map(|id| id.0)
    });
    parsed.ok_or_else(|| {
        let hint = match typed.parse::<u64>() {
            Ok(id) => format!("name it LEVEL/NUMBER: the group of subvolume {id} is 0/{id}"),
            Err(_) => "name it LEVEL/NUMBER, for example 1/100".to_owned(),
        };
        Failure::usage(typed, "not a quota group").hint(hint)
    })
}

fn show(global: &GlobalArgs, args: &QgroupShowArgs, out: &mut Output) -> Outcome {
    if args.sync
        && let [path] = args.volume.volume.as_slice()
        && let Some(synced) = sync::sync_directory(Path::new(path))
    {
        synced.map_err(|error| Failure::io(path.display().to_string(), &error))?;
    }
    let report = report(global, &args.volume, "btrfs qgroup show")?;
    if !report.is_enabled {
        let typed = args.volume.volume.iter().map(|typed| text::escaped(typed.as_bytes()));
        let typed: Vec<_> = typed.collect();
        return Err(Failure::new(typed.join(" "), "quotas are disabled")
            .hint("`butternut quota enable` enables them"));
    }
    if !report.is_consistent && !global.quiet {
        stderr_line("the numbers are inconsistent: `butternut quota rescan` computes them again");
    }
    let groups = selection::select(global, args, &report)?;
    if global.json {
        return show_json(&groups, &report, out);
    }
    let columns = columns(args, &groups, &report);
    let mut heads = (String::new(), String::new());
    for column in &columns {
        let rule = "-".repeat(column.heading.len());
        heads.0.extend([column.aligned(column.heading).as_str(), " "]);
        heads.1.extend([column.aligned(&rule).as_str(), " "]);
    }
    writeln!(out, "{}  Path \n{}  ---- ", heads.0, heads.1)?;
    for (row, group) in groups.iter().enumerate() {
        let mut line = String::new();
        for column in &columns {
            let cell = column.cells.get(row).map_or("", String::as_str);
            line.extend([column.aligned(cell).as_str(), " "]);
        }
        write!(out, "{line}  ")?;
        let path = shown_path(group, &report);
        let shown = out.display_name(&path);
        out.line(&shown)?;
    }
    Ok(Completion::Success)
}

impl Column {
    fn new(heading: &'static str, width_min: usize, is_left: bool, cells: Vec<String>) -> Self {
        Self { heading, width_min, is_left, cells }
    }

    fn aligned(&self, text: &str) -> String {
        let widest = self.cells.iter().map(String::len).max().unwrap_or(0);
        let width = self.width_min.max(widest);
        if self.is_left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }
}

fn columns(args: &QgroupShowArgs, groups: &[GroupReport], report: &QuotaReport) -> Vec<Column> {
    let units = units(&args.units);
    let cells = |text: &dyn Fn(&GroupReport) -> String| groups.iter().map(text).collect();
    let mut columns = vec![
        Column::new("Qgroupid", 9, true, cells(&|group| QgroupId(group.id).to_string())),
        Column::new("Referenced", 12, false, cells(&|group| pretty(group.referenced, units))),
        Column::new("Exclusive", 12, false, cells(&|group| pretty(group.exclusive, units))),
    ];
    let limit =
        |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), |bytes| pretty(bytes, units));
    if args.limit_referenced {
        let text = |group: &GroupReport| limit(group.max_referenced);
        columns.push(Column::new("Max referenced", 15, false, cells(&text)));
    }
    if args.limit_exclusive {
        let text = |group: &GroupReport| limit(group.max_exclusive);
        columns.push(Column::new("Max exclusive", 14, false, cells(&text)));
    }
    if args.parents {
        let text = |group: &GroupReport| listed(&group.parents);
        columns.push(Column::new("Parent", 8, true, cells(&text)));
    }
    if args.children {
        let text = |group: &GroupReport| listed(&children(group, report));
        columns.push(Column::new("Child", 5, true, cells(&text)));
    }
    columns
}

/// Returns the groups that a group includes.
fn children(group: &GroupReport, report: &QuotaReport) -> Vec<u64> {
    let included = report.groups.iter().filter(|child| child.parents.contains(&group.id));
    included.map(|child| child.id).collect()
}

fn names(groups: &[u64]) -> Vec<String> {
    groups.iter().map(|id| QgroupId(*id).to_string()).collect()
}

fn listed(groups: &[u64]) -> String {
    if groups.is_empty() { "-".to_owned() } else { names(groups).join(",") }
}

fn shown_path(group: &GroupReport, report: &QuotaReport) -> Vec<u8> {
    if QgroupId(group.id).level() > 0 {
        let count = children(group, report).len();
        let members = text::counted(count, "member qgroup", "member qgroups");
        return format!("<{members}>").into_bytes();
    }
    match &group.subvolume {
        GroupSubvolume::None if report.is_simple && group.referenced > 0 => {
            b"<squota space holder>".to_vec()
        }
        GroupSubvolume::None => b"<stale>".to_vec(),
        GroupSubvolume::Deleted => b"<under deletion>".to_vec(),
        GroupSubvolume::LongPath => b"<path too long>".to_vec(),
        GroupSubvolume::Path(path) if path.is_empty() => b"<toplevel>".to_vec(),
        GroupSubvolume::Path(path) => path.clone(),
    }
}

fn show_json(groups: &[GroupReport], report: &QuotaReport, out: &mut Output) -> Outcome {
    let mut list = json::List::default();
    for group in groups {
        let mut object = json::Object::new()
            .put("id", QgroupId(group.id).to_string())
            .put("referenced_bytes", group.referenced)
            .put("exclusive_bytes", group.exclusive)
            .put("max_referenced_bytes", group.max_referenced)
            .put("max_exclusive_bytes", group.max_exclusive)
            .put("parents", names(&group.parents))
            .put("children", names(&children(group, report)));
        if let GroupSubvolume::Path(path) = &group.subvolume {
            object = object.name("path", path);
        }
        list.push(out, object)?;
    }
    list.end(out)?;
    Ok(Completion::Success)
}
