//! `subvolume show`: shows a subvolume in the format of `btrfs subvolume show`.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::{Follow, SubvolumeInfo, TOP_LEVEL, Time};

use crate::args::{GlobalArgs, SubvolumeShowArgs};
use crate::commands::mounted;
use crate::commands::mounted::root_tree::MountedVolume;
use crate::commands::transaction::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, text, time};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeShowArgs, out: &mut Output) -> Outcome {
    let volume = &args.volume.volume;
    let (shown, mut snapshots) = match &args.path {
        None if mounted::is_directory(volume) => of_mount(Path::new(volume))?,
        path => {
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
            .put("snapshots", paths.collect::<Vec<serde_json::Value>>());
        json::document(out, object)?;
    } else {
        print(&shown, &snapshots, out)?;
    }
    Ok(Completion::Success)
}

/// Returns a subvolume of a volume that is not mounted, and all other subvolumes.
fn of_volume(
    opened: &OpenVolume,
    path: &OsString,
) -> Result<(SubvolumeInfo, Vec<SubvolumeInfo>), Failure> {
    let id = opened.resolve(path, Follow::Last)?;
    let what = text::escaped(&text::bytes(path));
    if !id.is_subvolume_root() {
        return Err(not_a_subvolume(&text::bytes(path)));
    }
    let shown =
        opened.filesystem.subvolume(id.subvolume).map_err(|error| Failure::of(&*what, &error))?;
    let all = opened.filesystem.subvolumes().map_err(|error| opened.failure(&error))?;
    Ok((shown, all))
}

/// As [`of_volume`], of a mounted volume.
fn of_mount(path: &Path) -> Result<(SubvolumeInfo, Vec<SubvolumeInfo>), Failure> {
    let volume = MountedVolume::open(path)?;
    if !volume.is_subvolume()? {
        return Err(not_a_subvolume(path.as_os_str().as_bytes()));
    }
    let id = volume.id()?;
    Ok((volume.subvolume(id)?, volume.subvolumes()?))
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

fn when(at: Time) -> String {
    if at.secs == 0 { "-".to_owned() } else { time::with_zone(at) }
}
