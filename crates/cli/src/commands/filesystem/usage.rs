//! `filesystem usage`: shows space usage by block group type and device, with totals, in the format
//! of btrfs-progs.

use std::io::Write;

use butternut::{DeviceInfo, GroupUsage, Usage};
use serde_json::Value;

use super::groups::{DATA, METADATA, SYSTEM, kind, profile, sorted, units};
use crate::args::{GlobalArgs, UsageTableArgs};
use crate::commands::mounted::directory::MountedDirectory;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::{Units, percent, pretty, ratio};
use crate::output::table::{Side, Table};
use crate::output::{Output, json};
use crate::volume::OpenVolume;

const COMMAND: &str = "filesystem usage";

/// Unallocated space below this is not counted as free: no chunk fits.
const CHUNK_BYTES_MIN: u64 = 16 << 20;

/// The totals of the volume.
struct Overall {
    device_bytes: u64,
    allocated_bytes: u64,
    missing_bytes: u64,
    slack_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    free_min_bytes: u64,
    free_statfs_bytes: u64,
    data_ratio: String,
    metadata_ratio: String,
    reserve_bytes: u64,
    multiple: Vec<&'static str>,
}

pub(crate) fn run(global: &GlobalArgs, args: &UsageTableArgs, out: &mut Output) -> Outcome {
    let (usage, available_bytes) = read(global, args)?;
    let overall = Overall::of(&usage, available_bytes);
    if global.json {
        json::document(out, as_json(&overall, &usage))?;
        return Ok(Completion::Success);
    }
    let units = units(&args.usage.units);
    print_overall(&overall, units, out)?;
    if args.table {
        print_table(&overall, &usage, units, out)?;
    } else {
        print_groups(&usage, units, out)?;
    }
    Ok(Completion::Success)
}

/// Returns the usage, and the bytes that statfs(2) says are free.
fn read(global: &GlobalArgs, args: &UsageTableArgs) -> Result<(Usage, u64), Failure> {
    if let Some(mounted) = MountedDirectory::open_only(&args.usage.volume.volume)? {
        let report = mounted.report(COMMAND)?;
        let available_bytes = report.available_bytes;
        return Ok((report.into_usage(), available_bytes));
    }
    let opened = OpenVolume::from_args(global, &args.usage.volume)?;
    let usage = opened.filesystem.usage().map_err(|error| opened.failure(&error))?;
    let statfs = opened.filesystem.statfs().map_err(|error| opened.failure(&error))?;
    Ok((usage, statfs.blocks_available.saturating_mul(statfs.block_bytes.into())))
}

impl Overall {
    fn of(usage: &Usage, free_statfs_bytes: u64) -> Self {
        let device_bytes = usage.devices.iter().map(|device| device.total_bytes).sum::<u64>();
        let allocated_bytes =
            usage.devices.iter().map(|device| device.allocated_bytes).sum::<u64>();
        let missing = usage.devices.iter().filter(|device| device.missing);
        let of = |kinds: u64| usage.groups.iter().filter(move |g| g.flags & kinds == kinds);
        let sums = |kinds| {
            of(kinds).fold((0, 0), |(raw, total), g| (raw + g.raw_bytes, total + g.total_bytes))
        };
        let (data_raw, data_total) = sums(DATA);
        // The ratio of a block group may be any number, so what is scaled by it may be, too.
        let data_used = of(DATA).map(raw_used).fold(0, u64::saturating_add);
        let (metadata_raw, metadata_total) = sums(METADATA);
        let unallocated = device_bytes.saturating_sub(allocated_bytes);
        let logical = |raw: u64, (of_raw, of_total): (u64, u64)| {
            if of_raw == 0 { raw } else { scale(raw, of_total, of_raw) }
        };
        let in_chunks = logical(data_raw.saturating_sub(data_used), (data_raw, data_total));
        let counts = unallocated >= CHUNK_BYTES_MIN;
        let most_copies = usage.groups.iter().map(|g| (g.raw_bytes, g.total_bytes));
        let most_copies = most_copies
            .max_by(|a, b| {
                let cross = |x: &(u64, u64), y: &(u64, u64)| u128::from(x.0) * u128::from(y.1);
                cross(a, b).cmp(&cross(b, a))
            })
            .unwrap_or((1, 1));
        let more = |per| if counts { logical(unallocated, per) } else { 0 };
        Self {
            device_bytes,
            allocated_bytes,
            missing_bytes: missing.map(|device| device.total_bytes).sum(),
            slack_bytes: usage.devices.iter().map(slack).sum(),
            used_bytes: usage.groups.iter().map(raw_used).fold(0, u64::saturating_add),
            free_bytes: in_chunks.saturating_add(more((data_raw, data_total))),
            free_min_bytes: in_chunks.saturating_add(more(most_copies)),
            free_statfs_bytes,
            data_ratio: ratio(data_raw, data_total),
            metadata_ratio: ratio(metadata_raw, metadata_total),
            reserve_bytes: usage.global_reserve_bytes,
            multiple: multiple(usage),
        }
    }
}

fn scale(bytes: u64, times: u64, over: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(times) / u128::from(over.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Returns the used bytes of a block group with all mirrors and parity.
fn raw_used(group: &GroupUsage) -> u64 {
    scale(group.used_bytes, group.raw_bytes, group.total_bytes)
}

/// Returns the bytes of the device beyond the size in its device item.
fn slack(device: &DeviceInfo) -> u64 {
    device.device_bytes.saturating_sub(device.total_bytes)
}

/// Returns the block group types that have more than one profile; a balance would convert them.
fn multiple(usage: &Usage) -> Vec<&'static str> {
    let kinds = [(DATA, "data"), (METADATA, "metadata"), (SYSTEM, "system")];
    let many = |kind: u64| usage.groups.iter().filter(|g| g.flags & 7 == kind).count() > 1;
    kinds.iter().filter(|(kind, _)| many(*kind)).map(|(_, name)| *name).collect()
}

fn print_overall(overall: &Overall, units: Units, out: &mut dyn Write) -> std::io::Result<()> {
    let size = |bytes| pretty(bytes, units);
    // Wide enough for every u64 in common use.
    let width = if units == Units::Bytes { 18 } else { 10 };
    let unallocated = overall.device_bytes.saturating_sub(overall.allocated_bytes);
    writeln!(out, "Overall:")?;
    writeln!(out, "    Device size:\t\t{:>width$}", size(overall.device_bytes))?;
    writeln!(out, "    Device allocated:\t\t{:>width$}", size(overall.allocated_bytes))?;
    writeln!(out, "    Device unallocated:\t\t{:>width$}", size(unallocated))?;
    writeln!(out, "    Device missing:\t\t{:>width$}", size(overall.missing_bytes))?;
    writeln!(out, "    Device slack:\t\t{:>width$}", size(overall.slack_bytes))?;
    writeln!(out, "    Used:\t\t\t{:>width$}", size(overall.used_bytes))?;
    writeln!(
        out,
        "    Free (estimated):\t\t{:>width$}\t(min: {})",
        size(overall.free_bytes),
        size(overall.free_min_bytes)
    )?;
    writeln!(out, "    Free (statfs, df):\t\t{:>width$}", size(overall.free_statfs_bytes))?;
    writeln!(out, "    Data ratio:\t\t\t{:>width$}", overall.data_ratio)?;
    writeln!(out, "    Metadata ratio:\t\t{:>width$}", overall.metadata_ratio)?;
    writeln!(
        out,
        "    Global reserve:\t\t{:>width$}\t(used: {})",
        size(overall.reserve_bytes),
        size(0)
    )?;
    let multiple = if overall.multiple.is_empty() {
        format!("{:>width$}", "no")
    } else {
        format!("{:>width$}\t({})", "yes", overall.multiple.join(", "))
    };
    writeln!(out, "    Multiple profiles:\t\t{multiple}")?;
    writeln!(out)
}

fn print_groups(usage: &Usage, units: Units, out: &mut dyn Write) -> std::io::Result<()> {
    let size = |bytes| pretty(bytes, units);
    for group in sorted(&usage.groups, [DATA, DATA | METADATA, METADATA, SYSTEM]) {
        writeln!(
            out,
            "{},{}: Size:{}, Used:{} ({})",
            kind(group.flags),
            profile(group.flags),
            size(group.total_bytes),
            size(group.used_bytes),
            percent(group.used_bytes, group.total_bytes)
        )?;
        for device in &usage.devices {
            let bytes = allocated(device, group.flags);
            if bytes > 0 {
                writeln!(out, "   {}\t{:>10}", path(device), size(bytes))?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "Unallocated:")?;
    for device in &usage.devices {
        writeln!(out, "   {}\t{:>10}", path(device), size(unallocated(device)))?;
    }
    Ok(())
}

fn print_table(
    overall: &Overall,
    usage: &Usage,
    units: Units,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let groups = sorted(&usage.groups, [DATA, DATA | METADATA, METADATA, SYSTEM]);
    let size = |bytes| pretty(bytes, units);
    let size_or_dash = |bytes| if bytes == 0 { "-".to_owned() } else { size(bytes) };
    let mut sides = vec![Side::Right, Side::Left];
    sides.extend(std::iter::repeat_n(Side::Right, groups.len() + 3));
    let mut table = Table::new(&sides);
    let row = |first: &str, second: &str, cells: Vec<String>, last: [String; 3]| {
        let mut row = vec![first.to_owned(), second.to_owned()];
        row.extend(cells);
        row.extend(last);
        row
    };
    let none = || [String::new(), String::new(), String::new()];
    let heads = groups.iter().map(|group| kind(group.flags).to_owned()).collect();
    table.row(row("", "", heads, none()));
    let profiles = groups.iter().map(|group| profile(group.flags).to_owned()).collect();
    table.row(row("Id", "Path", profiles, ["Unallocated".into(), "Total".into(), "Slack".into()]));
    table.rule();
    for device in &usage.devices {
        let cells = groups.iter().map(|g| size_or_dash(allocated(device, g.flags))).collect();
        let last =
            [size(unallocated(device)), size(device.total_bytes), size_or_dash(slack(device))];
        table.row(row(&device.id.to_string(), &path(device), cells, last));
    }
    table.rule();
    let totals = groups.iter().map(|group| size(group.total_bytes)).collect();
    let all = overall.device_bytes.saturating_sub(overall.allocated_bytes);
    let last = [size(all), size(overall.device_bytes), size(overall.slack_bytes)];
    table.row(row("", "Total", totals, last));
    let used = groups.iter().map(|group| size(group.used_bytes)).collect();
    table.row(row("", "Used", used, none()));
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn path(device: &DeviceInfo) -> String {
    device.path.clone().unwrap_or_else(|| "missing".to_owned())
}

fn allocated(device: &DeviceInfo, flags: u64) -> u64 {
    device.allocated.iter().filter(|(of, _)| *of == flags).map(|(_, bytes)| bytes).sum()
}

fn unallocated(device: &DeviceInfo) -> u64 {
    device.total_bytes.saturating_sub(device.allocated_bytes)
}

fn as_json(overall: &Overall, usage: &Usage) -> json::Object {
    let groups = sorted(&usage.groups, [DATA, DATA | METADATA, METADATA, SYSTEM]);
    let groups = groups.iter().map(|group| {
        let devices = usage.devices.iter().filter(|device| allocated(device, group.flags) > 0);
        let devices = devices.map(|device| {
            Value::from(
                json::Object::new()
                    .put("id", device.id)
                    .put("allocated_bytes", allocated(device, group.flags)),
            )
        });
        Value::from(
            json::Object::new()
                .put("type", kind(group.flags))
                .put("profile", profile(group.flags))
                .put("total_bytes", group.total_bytes)
                .put("used_bytes", group.used_bytes)
                .put("raw_bytes", group.raw_bytes)
                .put("devices", devices.collect::<Vec<_>>()),
        )
    });
    let devices = usage.devices.iter().map(|device| {
        Value::from(
            json::Object::new()
                .put("id", device.id)
                .put("path", device.path.clone())
                .put("missing", device.missing)
                .put("total_bytes", device.total_bytes)
                .put("allocated_bytes", device.allocated_bytes)
                .put("unallocated_bytes", unallocated(device))
                .put("slack_bytes", slack(device)),
        )
    });
    json::Object::new()
        .put("device_bytes", overall.device_bytes)
        .put("allocated_bytes", overall.allocated_bytes)
        .put("missing_bytes", overall.missing_bytes)
        .put("slack_bytes", overall.slack_bytes)
        .put("used_bytes", overall.used_bytes)
        .put("free_bytes", overall.free_bytes)
        .put("free_min_bytes", overall.free_min_bytes)
        .put("free_statfs_bytes", overall.free_statfs_bytes)
        .put("data_ratio", overall.data_ratio.clone())
        .put("metadata_ratio", overall.metadata_ratio.clone())
        .put("global_reserve_bytes", overall.reserve_bytes)
        .put("multiple_profiles", overall.multiple.clone())
        .put("groups", groups.collect::<Vec<_>>())
        .put("devices", devices.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::{DATA, DeviceInfo, GroupUsage, Overall, Usage};

    #[test]
    fn numbers_of_a_hostile_report_do_not_overflow() {
        let group = |used_bytes, raw_bytes, total_bytes| {
            let mut group = GroupUsage::default();
            group.flags = DATA;
            group.used_bytes = used_bytes;
            group.raw_bytes = raw_bytes;
            group.total_bytes = total_bytes;
            group
        };
        let mut device = DeviceInfo::default();
        device.total_bytes = 1 << 58;
        let mut usage = Usage::default();
        usage.devices = vec![device];
        usage.groups = vec![group(0, 1, 1 << 58)];
        assert_eq!(Overall::of(&usage, 0).free_bytes, u64::MAX);
        let used = || group(1 << 40, 1 << 40, 0);
        usage.groups = vec![used(), used()];
        assert_eq!(Overall::of(&usage, 0).used_bytes, u64::MAX);
    }
}
