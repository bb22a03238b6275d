//! `property get` and `property set`: properties of subvolumes, as btrfs-property(8) names them.
//! The only one is `ro`.

use std::ffi::OsString;
use std::io::Write;

use butternut::Follow;

use crate::args::{GlobalArgs, PropertyGetArgs, PropertySetArgs};
use crate::commands::mounted;
use crate::commands::transaction::{Transaction, failed};
use crate::failure::subvolumes::received;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::json::Object;
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

/// The name of the property.
const READ_ONLY: &str = "ro";

pub(crate) fn get(global: &GlobalArgs, args: &PropertyGetArgs, out: &mut Output) -> Outcome {
    if let (Some(name), None) = (&args.path, &args.name)
        && mounted::is_plain_file(&args.volume.volume)
    {
        return other(Some(name), "property get VOLUME PATH [ro]");
    }
    let is_name = |name: Option<&OsString>| name.is_none_or(|name| name == READ_ONLY);
    let read_only = match (mounted::is_path(&args.volume.volume, args.path.is_none()), &args.path) {
        (true, name) if args.name.is_none() && is_name(name.as_ref()) => {
            mounted::is_read_only(&args.volume.volume)?
        }
        (false, Some(path)) if is_name(args.name.as_ref()) => of_volume(global, args, path)?,
        (is_mounted, path) => {
            let name = if is_mounted { path.as_ref() } else { args.name.as_ref() };
            return other(name, "property get VOLUME PATH [ro]");
        }
    };
    if global.json {
        json::document(out, Object::new().put("ro", read_only))?;
    } else {
        writeln!(out, "ro={read_only}")?;
    }
    Ok(Completion::Success)
}

/// Returns whether a subvolume of a volume that is not mounted is read-only.
fn of_volume(
    global: &GlobalArgs,
    args: &PropertyGetArgs,
    path: &OsString,
) -> Result<bool, Failure> {
    let opened = OpenVolume::from_arg(global, &args.volume)?;
    let id = opened.resolve(path, Follow::Last)?;
    let path = text::bytes(path);
    require_subvolume(id.is_subvolume_root(), &path)?;
    let info = opened.filesystem.subvolume(id.subvolume);
    Ok(info.map_err(|error| failed(&path, &error))?.read_only)
}

pub(crate) fn set(global: &GlobalArgs, args: &PropertySetArgs, out: &mut Output) -> Outcome {
    let is_mounted = mounted::is_path(&args.volume.volume, args.typed.len() == 2);
    let typed: Vec<&OsString> = args.typed.iter().collect();
    let (path, name, value) = match (is_mounted, typed.as_slice()) {
        (true, [name, value]) => (&args.volume.volume, name, value),
        (false, [path, name, value]) => (*path, name, value),
        (false, [name, _]) if mounted::is_plain_file(&args.volume.volume) => {
            return other(Some(name), "property set VOLUME PATH ro true|false");
        }
        _ => return Ok(mounted::usage("property set VOLUME PATH ro true|false")),
    };
    let value = match (name.to_str(), value.to_str()) {
        (Some(READ_ONLY), Some("true")) => true,
        (Some(READ_ONLY), Some("false")) => false,
        _ => return other(Some(*name), "property set VOLUME PATH ro true|false"),
    };
    if is_mounted {
        return mounted::set_read_only(global, path, value, args.force, out);
    }
    let mut transaction = Transaction::open(global, &args.volume)?;
    let path = text::bytes(path);
    let id = transaction.find(&path, Follow::Last)?;
    require_subvolume(id.is_subvolume_root(), &path)?;
    let info = transaction.filesystem().subvolume(id.subvolume);
    let info = info.map_err(|error| failed(&path, &error))?;
    if !value && !args.force && info.received_uuid != [0; 16] {
        return Err(received(&path));
    }
    let set = transaction.filesystem().set_subvolume_read_only(id.subvolume, value);
    set.map_err(|error| transaction.failed(&path, &error))?;
    transaction.record("changed", &path);
    transaction.finish(global, out, |object| object.put("ro", value))
}

/// Reports a property other than ro; the form of the command, if it has no other name.
fn other(name: Option<&OsString>, form: &str) -> Outcome {
    let hint = match name.and_then(|name| name.to_str()) {
        Some("compression") => "`setfattr -n btrfs.compression -v zstd` sets it",
        Some("label") => "`butternut filesystem label` shows and sets it",
        _ => return Ok(mounted::usage(form)),
    };
    let name = name.map(|name| name.display().to_string()).unwrap_or_default();
    Err(Failure::usage(name, "is no property of a subvolume").hint(hint))
}

fn require_subvolume(is_subvolume: bool, path: &[u8]) -> Result<(), Failure> {
    if is_subvolume {
        return Ok(());
    }
    Err(Failure::new(text::escaped(path), "not a subvolume")
        .hint("the property ro belongs to subvolumes"))
}
