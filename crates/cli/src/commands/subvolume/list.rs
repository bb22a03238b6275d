//! `subvolume list`: lists subvolumes in the format of `btrfs subvolume list`, with paths from the
//! top level.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use butternut::SubvolumeInfo;

use crate::args::{GlobalArgs, ListSort, SubvolumeListArgs};
use crate::commands::mounted;
use crate::commands::mounted::root_tree::MountedVolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, text, time};
use crate::volume::{OpenVolume, arg};

/// Printed in place of a UUID that is not set.
const NO_UUID: &str = "-                                   ";

/// A field: its label, which is also its heading in the table, and its text.
struct Column {
    word: &'static str,
    text: Text,
}

type Text = fn(&SubvolumeInfo) -> String;

pub(crate) fn run(global: &GlobalArgs, args: &SubvolumeListArgs, out: &mut Output) -> Outcome {
    let (top, mut all) = subvolumes(global, args)?;
    all.retain(|subvolume| is_listed(args, top, subvolume));
    sort(&mut all, &args.sort);
    if global.json {
        let mut list = json::List::default();
        for subvolume in &all {
            list.push(out, as_json(subvolume))?;
        }
        list.end(out)?;
        return Ok(Completion::Success);
    }
    let columns = columns(args);
    if args.table {
        let heads: Vec<&str> = columns.iter().map(|column| column.word).collect();
        writeln!(out, "{}\tpath\t", heads.join("\t"))?;
        let rules: Vec<String> = heads.iter().map(|head| "-".repeat(head.len())).collect();
        writeln!(out, "{}\t----\t", rules.join("\t"))?;
    }
    for subvolume in &all {
        let mut line = String::new();
        for column in &columns {
            let text = (column.text)(subvolume);
            if args.table {
                line.push_str(&text);
                line.push_str(if column.word == "top level" { "\t\t" } else { "\t" });
            } else {
                line.extend([column.word, " ", &text, " "]);
            }
        }
        if !args.table {
            line.push_str("path ");
        }
        out.write_all(line.as_bytes())?;
        let path = shown_path(args, top, subvolume);
        let shown = out.display_name(&path);
        out.line(&shown)?;
    }
    Ok(Completion::Success)
}

/// Returns the subvolume that the list is relative to, and all others.
fn subvolumes(
    global: &GlobalArgs,
    args: &SubvolumeListArgs,
) -> Result<(u64, Vec<SubvolumeInfo>), Failure> {
    if let [path] = args.volume.volume.as_slice()
        && mounted::is_directory(path)
    {
        let volume = MountedVolume::open(Path::new(path))?;
        return Ok((volume.id()?, volume.subvolumes()?));
    }
    if let [_, others @ ..] = args.volume.volume.as_slice()
        && let Some(path) = others.iter().find(|other| !is_device(other))
    {
        return Err(Failure::usage(text::escaped(path.as_bytes()), "is no device")
            .hint("the command takes no path; -o VOLUME@SUBVOL lists the subvolumes below one"));
    }
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let all = opened.filesystem.subvolumes().map_err(|error| opened.failure(&error))?;
    Ok((opened.filesystem.root().subvolume, all))
}

/// Returns whether an argument may name a further device.
fn is_device(argument: &OsStr) -> bool {
    let is_whole = Path::new(argument).metadata().is_ok_and(|found| !found.is_dir());
    is_whole || arg::begins_with_device(argument)
}

fn is_listed(args: &SubvolumeListArgs, top: u64, subvolume: &SubvolumeInfo) -> bool {
    let is_snapshot = subvolume.parent_uuid != [0; 16];
    subvolume.deleted == args.deleted
        && (!args.snapshots || is_snapshot)
        && (!args.read_only || subvolume.read_only)
        && (!args.only_below || subvolume.parent == Some(top))
}

/// Sorts by several keys: the first one decides, and the id where all are equal.
fn sort(all: &mut [SubvolumeInfo], keys: &[(bool, ListSort)]) {
    all.sort_by(|a, b| {
        let compared = keys.iter().map(|(reversed, key)| {
            let order = match key {
                ListSort::Rootid => a.id.cmp(&b.id),
                ListSort::Gen => a.generation.cmp(&b.generation),
                ListSort::Ogen => a.created_generation.cmp(&b.created_generation),
                ListSort::Path => a.path.cmp(&b.path),
            };
            if *reversed { order.reverse() } else { order }
        });
        compared.chain([a.id.cmp(&b.id)]).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
}

fn columns(args: &SubvolumeListArgs) -> Vec<Column> {
    let parent = |subvolume: &SubvolumeInfo| subvolume.parent.unwrap_or(0).to_string();
    let all: [(bool, &'static str, Text); 9] = [
        (true, "ID", |s| s.id.to_string()),
        (true, "gen", |s| s.generation.to_string()),
        (args.created || args.snapshots, "cgen", |s| s.created_generation.to_string()),
        (args.parent, "parent", parent),
        (true, "top level", parent),
        (args.snapshots, "otime", |s| time::seconds(s.created)),
        (args.parent_uuid, "parent_uuid", |s| padded(&s.parent_uuid)),
        (args.received_uuid, "received_uuid", |s| padded(&s.received_uuid)),
        (args.uuid, "uuid", |s| padded(&s.uuid)),
    ];
    let shown = all.into_iter().filter(|(shown, _, _)| *shown);
    shown.map(|(_, word, text)| Column { word, text }).collect()
}

fn padded(uuid: &[u8; 16]) -> String {
    if *uuid == [0; 16] { NO_UUID.to_owned() } else { text::uuid(uuid) }
}

/// Begins the path of a subvolume in directories that are too deep or too long to be shown.
const NO_PATH: &[u8] = b"<TOO_LONG>";

fn shown_path(args: &SubvolumeListArgs, top: u64, subvolume: &SubvolumeInfo) -> Vec<u8> {
    let path = match &subvolume.path {
        Some(path) => path,
        None if subvolume.deleted => return b"DELETED".to_vec(),
        None => return text::joined(NO_PATH, &subvolume.name),
    };
    if args.all && subvolume.parent != Some(top) {
        return text::joined(b"<FS_TREE>", path);
    }
    path.clone()
}

/// Returns a subvolume as every command prints it with --json.
pub(crate) fn as_json(subvolume: &SubvolumeInfo) -> json::Object {
    let object = json::Object::new().put("id", subvolume.id);
    let object = match &subvolume.path {
        Some(path) => object.name("path", path),
        None => object.put("path", serde_json::Value::Null),
    };
    object
        .name("name", &subvolume.name)
        .put("parent", subvolume.parent)
        .put("generation", subvolume.generation)
        .put("created_generation", subvolume.created_generation)
        .uuid("uuid", &subvolume.uuid)
        .uuid("parent_uuid", &subvolume.parent_uuid)
        .uuid("received_uuid", &subvolume.received_uuid)
        .time("created", subvolume.created)
        .time("changed", subvolume.changed)
        .put("sent_generation", subvolume.sent_generation)
        .put("received_generation", subvolume.received_generation)
        .put("read_only", subvolume.read_only)
        .put("deleted", subvolume.deleted)
}
