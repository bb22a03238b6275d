//! `qgroup show`, in the format of `btrfs qgroup show`, and the commands that change quota groups.

use std::collections::BTreeMap;
use std::io::Write;

use butternut::format::quota::{QgroupId, STATUS_INCONSISTENT};
use butternut::{Qgroup, Quotas, TOP_LEVEL};

use super::filesystem::groups::units;
use super::quota::change;
use crate::args::{GlobalArgs, QgroupCommand, QgroupLimitArgs, QgroupShowArgs, parse_bytes};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::pretty;
use crate::output::{Output, json, stderr_line};
use crate::volume::OpenVolume;

/// A column of the table: its heading, the width that it has at least, and its cells.
struct Column {
    heading: &'static str,
    width_min: usize,
    is_left: bool,
    cells: Vec<String>,
}

/// The path of each subvolume, by its id; `None` for one that is deleted and not yet cleaned.
type Paths = BTreeMap<u64, Option<Vec<u8>>>;

pub(crate) fn run(global: &GlobalArgs, command: &QgroupCommand, out: &mut Output) -> Outcome {
    match command {
        QgroupCommand::Show(args) => show(global, args, out),
        QgroupCommand::Create(args) => {
            let id = parse(&args.group)?;
            change(global, &args.volume, out, |filesystem| filesystem.create_qgroup(id))
        }
        QgroupCommand::Destroy(args) => {
            let id = parse(&args.group)?;
            change(global, &args.volume, out, |filesystem| filesystem.remove_qgroup(id))
        }
        QgroupCommand::Assign(args) => {
            let (child, parent) = (parse(&args.child)?, parse(&args.parent)?);
            change(global, &args.volume, out, |fs| fs.assign_qgroup(child, parent))
        }
        QgroupCommand::Limit(args) => limit(global, args, out),
        QgroupCommand::Remove(args) => {
            let (child, parent) = (parse(&args.child)?, parse(&args.parent)?);
            change(global, &args.volume, out, |fs| fs.unassign_qgroup(child, parent))
        }
    }
}

fn limit(global: &GlobalArgs, args: &QgroupLimitArgs, out: &mut Output) -> Outcome {
    let id = parse(&args.group)?;
    let bytes = match args.size.as_str() {
        "none" => None,
        typed => Some(parse_bytes("SIZE", typed)?),
    };
    change(global, &args.volume, out, |filesystem| {
        let quotas = filesystem.quotas()?;
        let groups = quotas.iter().flat_map(|quotas| &quotas.groups);
        let known = groups.into_iter().find(|group| group.id == id);
        let mut limits = known.map(|group| group.limits).unwrap_or_default();
        let place = if args.exclusive { &mut limits.exclusive } else { &mut limits.referenced };
        *place = bytes;
        filesystem.limit_qgroup(id, limits)
    })
}

/// Parses LEVEL/NUMBER.
fn parse(typed: &str) -> Result<QgroupId, Failure> {
    let parts = typed.split_once('/');
    let parsed = parts.and_then(|(level, number)| {
        let (level, number) = (level.parse::<u16>().ok()?, number.parse::<u64>().ok()?);
        QgroupId::of(level, number)
    });
    parsed.ok_or_else(|| {
        Failure::new(typed, "not a quota group").hint("name it LEVEL/NUMBER, for example 1/100")
    })
}

fn show(global: &GlobalArgs, args: &QgroupShowArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let filesystem = &opened.filesystem;
    let quotas = filesystem.quotas().map_err(|error| opened.failure(&error))?;
    let quotas = quotas.ok_or_else(|| {
        Failure::new(opened.arg.typed.clone(), "quotas are disabled")
            .hint("`butternut quota enable` enables them")
    })?;
    let subvolumes = filesystem.subvolumes().map_err(|error| opened.failure(&error))?;
    let mut paths: Paths = subvolumes.into_iter().map(|info| (info.id, info.path)).collect();
    paths.insert(TOP_LEVEL, Some(Vec::new()));
    if quotas.status.flags & STATUS_INCONSISTENT != 0 && !global.quiet {
        stderr_line("the numbers are inconsistent: `butternut quota rescan` computes them again");
    }
    if global.json {
        return show_json(&quotas, &paths, out);
    }
    let columns = columns(args, &quotas);
    let mut heads = (String::new(), String::new());
    for column in &columns {
        let rule = "-".repeat(column.heading.len());
        heads.0.extend([column.aligned(column.heading).as_str(), " "]);
        heads.1.extend([column.aligned(&rule).as_str(), " "]);
    }
    writeln!(out, "{}  Path \n{}  ---- ", heads.0, heads.1)?;
    for (row, group) in quotas.groups.iter().enumerate() {
        let mut line = String::new();
        for column in &columns {
            let cell = column.cells.get(row).map_or("", String::as_str);
            line.extend([column.aligned(cell).as_str(), " "]);
        }
        write!(out, "{line}  ")?;
        let path = shown_path(group, &quotas, &paths);
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

fn columns(args: &QgroupShowArgs, quotas: &Quotas) -> Vec<Column> {
    let units = units(&args.units);
    let cells = |text: &dyn Fn(&Qgroup) -> String| quotas.groups.iter().map(text).collect();
    let mut columns = vec![
        Column::new("Qgroupid", 9, true, cells(&|group| group.id.to_string())),
        Column::new("Referenced", 12, false, cells(&|group| pretty(group.usage.referenced, units))),
        Column::new("Exclusive", 12, false, cells(&|group| pretty(group.usage.exclusive, units))),
    ];
    let limit =
        |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), |bytes| pretty(bytes, units));
    if args.limit_referenced {
        let text = |group: &Qgroup| limit(group.limits.referenced);
        columns.push(Column::new("Max referenced", 15, false, cells(&text)));
    }
    if args.limit_exclusive {
        let text = |group: &Qgroup| limit(group.limits.exclusive);
        columns.push(Column::new("Max exclusive", 14, false, cells(&text)));
    }
    if args.parents {
        let text = |group: &Qgroup| listed(&group.parents);
        columns.push(Column::new("Parent", 8, true, cells(&text)));
    }
    if args.children {
        let text = |group: &Qgroup| listed(&children(group, quotas));
        columns.push(Column::new("Child", 5, true, cells(&text)));
    }
    columns
}

/// Returns the groups that a group includes.
fn children(group: &Qgroup, quotas: &Quotas) -> Vec<QgroupId> {
    let included = quotas.groups.iter().filter(|child| child.parents.contains(&group.id));
    included.map(|child| child.id).collect()
}

fn listed(groups: &[QgroupId]) -> String {
    if groups.is_empty() {
        return "-".to_owned();
    }
    groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn shown_path(group: &Qgroup, quotas: &Quotas, paths: &Paths) -> Vec<u8> {
    if group.id.level() > 0 {
        let count = children(group, quotas).len();
        let plural = if count == 1 { "" } else { "s" };
        return format!("<{count} member qgroup{plural}>").into_bytes();
    }
    match paths.get(&group.id.number()) {
        None => b"<stale>".to_vec(),
        Some(None) => b"<under deletion>".to_vec(),
        Some(Some(path)) if path.is_empty() => b"<toplevel>".to_vec(),
        Some(Some(path)) => path.clone(),
    }
}

fn show_json(quotas: &Quotas, paths: &Paths, out: &mut Output) -> Outcome {
    let names =
        |groups: &[QgroupId]| -> Vec<String> { groups.iter().map(ToString::to_string).collect() };
    let mut list = json::List::default();
    for group in &quotas.groups {
        let mut object = json::Object::new()
            .put("id", group.id.to_string())
            .put("referenced_bytes", group.usage.referenced)
            .put("exclusive_bytes", group.usage.exclusive)
            .put("max_referenced_bytes", group.limits.referenced)
            .put("max_exclusive_bytes", group.limits.exclusive)
            .put("parents", names(&group.parents))
            .put("children", names(&children(group, quotas)));
        if let Some(Some(path)) = paths.get(&group.id.0) {
            object = object.name("path", path);
        }
        list.push(out, object)?;
    }
    list.end(out)?;
    Ok(Completion::Success)
}
