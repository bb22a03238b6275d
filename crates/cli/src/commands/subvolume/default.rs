//! `subvolume get-default` and `set-default`: the subvolume that a mount without options shows.

use std::io::Write;
use std::path::Path;

use butternut::{Follow, SubvolumeInfo, TOP_LEVEL};

use crate::args::{GlobalArgs, SubvolumeSetDefaultArgs, VolumesArgs};
use crate::commands::mounted;
use crate::commands::mounted::root_tree::MountedVolume;
use crate::commands::transaction::Transaction;
use crate::failure::subvolumes::not_a_subvolume;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, stderr_line, text};
use crate::volume::OpenVolume;

pub(crate) fn get(global: &GlobalArgs, args: &VolumesArgs, out: &mut Output) -> Outcome {
    let info = default(global, args)?;
    let id = info.id;
    if global.json {
        json::document(out, super::list::as_json(&info))?;
    } else if id == TOP_LEVEL {
        writeln!(out, "ID {TOP_LEVEL} (FS_TREE)")?;
    } else {
        let (generation, parent) = (info.generation, info.parent.unwrap_or(0));
        write!(out, "ID {id} gen {generation} top level {parent} path ")?;
        let path = out.display_name(info.path.as_deref().unwrap_or_default());
        out.line(&path)?;
    }
    Ok(Completion::Success)
}

fn default(global: &GlobalArgs, args: &VolumesArgs) -> Result<SubvolumeInfo, Failure> {
    if let [path] = args.volume.as_slice()
        && mounted::is_directory(path)
    {
        let volume = MountedVolume::open(Path::new(path))?;
        return volume.subvolume(volume.default_subvolume()?);
    }
    let opened = OpenVolume::from_args(global, args)?;
    let filesystem = &opened.filesystem;
    let id = filesystem.default_subvolume().map_err(|error| opened.failure(&error))?;
    filesystem.subvolume(id).map_err(|error| opened.failure(&error))
}

pub(crate) fn set(
    global: &GlobalArgs,
    args: &SubvolumeSetDefaultArgs,
    out: &mut Output,
) -> Outcome {
    let subvolume = args.subvolume.as_ref();
    let volume = &args.volume.volume;
    if let (Some(id), Some(other)) = (volume.to_str(), subvolume)
        && id.parse::<u64>().is_ok()
        && !Path::new(volume).exists()
        && Path::new(other).exists()
    {
        let other = text::escaped(&text::bytes(other));
        return Err(Failure::usage(id, "is an id, not a volume")
            .hint(format!("the volume is first: `butternut subvolume set-default {other} {id}`")));
    }
    let typed = subvolume.and_then(|typed| typed.to_str()?.parse().ok());
    if mounted::is_path(&args.volume.volume, subvolume.is_none())
        && (subvolume.is_none() || typed.is_some())
    {
        return mounted::set_default(global, &args.volume.volume, typed, out);
    }
    let Some(subvolume) = subvolume else {
        return Ok(mounted::usage("subvolume set-default VOLUME SUBVOLUME"));
    };
    if let Some(usage) = mounted::with_path_apart(&args.volume.volume, &[subvolume]) {
        return Ok(usage);
    }
    let mut transaction = Transaction::open(global, &args.volume)?;
    let path = text::bytes(subvolume);
    let id = if let Some(id) = typed {
        id
    } else {
        let found = transaction.find(&path, Follow::Last)?;
        if !found.is_subvolume_root() {
            return Err(not_a_subvolume(&path));
        }
        found.subvolume
    };
    let before = transaction.filesystem().default_subvolume();
    if !global.quiet && typed.is_none() && id != TOP_LEVEL && before.is_ok_and(|it| it == id) {
        let path = text::escaped(&path);
        stderr_line(&format!(
            "{path}: note: this is the default already (5 in its place makes the top level the \
             default)"
        ));
    }
    let set = transaction.filesystem().set_default_subvolume(id);
    set.map_err(|error| transaction.failure(&error))?;
    transaction.record("made the default", &path);
    transaction.finish(global, out, |object| object.put("subvolume", id))
}
