//! `subvolume show`: shows a subvolume in the format of `btrfs subvolume show`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::format::quota::QgroupId;
use butternut::{Follow, SubvolumeInfo, TOP_LEVEL, Time};

use crate::args::{GlobalArgs, SubvolumeShowArgs};
use crate::commands::filesystem::groups::units;
use crate::commands::mounted::root_tree::MountedVolume;
use crate::commands::mounted::{self, with_path_apart};
use crate::commands::quota;
use crate::control::quotas::GroupReport;
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::size::{Units, pretty};
use crate::output::{Output, json, text, time};
use crate::volume::OpenVolume;

/// A subvolume, and what is shown beside its root item.
struct Shown {
    subvolume: SubvolumeInfo,
    /// All other subvolumes of the volume.
    others: Vec<SubvolumeInfo>,
    /// `None` if it is not known: in a volume that another program has mounted.
    quota: Option<Quota>,
}

/// The quota group of the subvolume, if it has one.
struct Quota(Option<GroupReport>);

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeShowArgs, out: &mut Output) -> Outcome {
    let volume = &args.volume.volume;
    let Shown { subvolume: shown, others: mut snapshots, quota } = match &args.path {
        None if mounted::is_directory(volume) => of_mount(Path::new(volume))?,
        path => {
            if let Some(usage) = path.as_ref().and_then(|it| with_path_apart(volume, &[it])) {
                return Ok(usage);
            }
            let opened = OpenVolume::from_arg(global, &args.volume)?;
            of_volume(&opened, &path.clone().unwrap_or_else(|| "/".into()))?
        }
    };
    snapshots.retain(|other| {
        other.parent_uuid == shown.uuid && shown.uuid != [0; 16] && other.path.is_some()
    });
    if global.json {
        let paths = snapshots.iter().filter_map(|s| s.path.as_ref());
        let paths = paths.map(|path| json::Object::new().name("path", path).into());
        let object = super::list::as_json(&shown)
            .put("snapshots", paths.collect::<Vec<serde_json::Value>>())
            .put("quota_group", quota.and_then(|quota| quota.0).map(|group| as_json(&group)));
        json::document(out, object)?;
    } else {
        print(&shown, &snapshots, out)?;
        if let Some(Quota(group)) = quota {
            print_quota(group.as_ref(), units(&args.units), out)?;
        }
    }
    Ok(Completion::Success)
}

/// Returns a subvolume of a volume that is not mounted.
fn of_volume(opened: &OpenVolume, path: &OsString) -> Result<Shown, Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let what = text::escaped(&text::bytes(path));
    if !id.is_subvolume_root() {
        return Err(not_a_subvolume(&text::bytes(path)));
    }
    let id = id.subvolume;
    let subvolume = opened.filesystem.subvolume(id).map_err(|error| Failure::of(&*what, &error))?;
    let others = opened.filesystem.subvolumes().map_err(|error| opened.failure(&error))?;
    let quota = Some(Quota(quota::group_of_volume(opened, id)?));
    Ok(Shown { subvolume, others, quota })
}

/// As [`of_volume`], of a mounted volume.
fn of_mount(path: &Path) -> Result<Shown, Failure> {
    let volume = MountedVolume::open(path)?;
    if !volume.is_subvolume()? {
        return Err(not_a_subvolume(path.as_os_str().as_bytes()));
    }
    let id = volume.id()?;
    let (subvolume, others) = (volume.subvolume(id)?, volume.subvolumes()?);
    let quota = quota::group_of_mount(path, id).ok().map(Quota);
    Ok(Shown { subvolume, others, quota })
}

fn print(
    shown: &SubvolumeInfo,
    snapshots: &[SubvolumeInfo],
    out: &mut Output,
) -> std::io::Result<()> {
    let is_top = shown.id == TOP_LEVEL;
    let title = match &shown.path {
        Some(path) if !path.is_empty() => out.display_name(path),
        _ => b"/".to_vec(),
    };
    out.line(&title)?;
    out.write_all(b"\tName: \t\t\t")?;
    let name = if is_top { b"<FS_TREE>".to_vec() } else { out.display_name(&shown.name) };
    out.line(&name)?;
    let parent = shown.parent.unwrap_or(0);
    writeln!(out, "\tUUID: \t\t\t{}", text::uuid_or_dash(&shown.uuid))?;
    writeln!(out, "\tParent UUID: \t\t{}", text::uuid_or_dash(&shown.parent_uuid))?;
    writeln!(out, "\tReceived UUID: \t\t{}", text::uuid_or_dash(&shown.received_uuid))?;
    writeln!(out, "\tCreation time: \t\t{}", when(shown.created))?;
    writeln!(out, "\tSubvolume ID: \t\t{}", shown.id)?;
    writeln!(out, "\tGeneration: \t\t{}", shown.generation)?;
    writeln!(out, "\tGen at creation: \t{}", shown.created_generation)?;
    writeln!(out, "\tParent ID: \t\t{parent}")?;
    writeln!(out, "\tTop level ID: \t\t{parent}")?;
    writeln!(out, "\tFlags: \t\t\t{}", if shown.read_only { "readonly" } else { "-" })?;
    writeln!(out, "\tSend transid: \t\t{}", shown.sent_generation)?;
    writeln!(out, "\tSend time: \t\t{}", when(shown.sent))?;
    writeln!(out, "\tReceive transid: \t{}", shown.received_generation)?;
    writeln!(out, "\tReceive time: \t\t{}", when(shown.received))?;
    writeln!(out, "\tSnapshot(s):")?;
    for path in snapshots.iter().filter_map(|snapshot| snapshot.path.as_ref()) {
        out.write_all(b"\t\t\t\t")?;
        let path = out.display_name(path);
        out.line(&path)?;
    }
    Ok(())
}

fn print_quota(group: Option<&GroupReport>, units: Units, out: &mut Output) -> std::io::Result<()> {
    let Some(group) = group else { return writeln!(out, "\tQuota group:\t\tn/a") };
    let limit =
        |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), |bytes| pretty(bytes, units));
    writeln!(out, "\tQuota group:\t\t{}", QgroupId(group.id))?;
    writeln!(out, "\t  Limit referenced:\t{}", limit(group.max_referenced))?;
    writeln!(out, "\t  Limit exclusive:\t{}", limit(group.max_exclusive))?;
    writeln!(out, "\t  Usage referenced:\t{}", pretty(group.referenced, units))?;
    writeln!(out, "\t  Usage exclusive:\t{}", pretty(group.exclusive, units))
}

fn as_json(group: &GroupReport) -> serde_json::Value {
    json::Object::new()
        .put("id", QgroupId(group.id).to_string())
        .put("referenced_bytes", group.referenced)
        .put("exclusive_bytes", group.exclusive)
        .put("max_referenced_bytes", group.max_referenced)
        .put("max_exclusive_bytes", group.max_exclusive)
        .into()
}

fn when(at: Time) -> String {
    if at.secs == 0 { "-".to_owned() } else { time::with_zone(at) }
}
