//! `inspect rootid`: prints the id of the subvolume that contains a path.

use std::io::Write;

use butternut::Follow;

use crate::args::{GlobalArgs, RootidArgs};
use crate::commands::files::Files;
use crate::commands::mounted::files::MountedFiles;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json, text};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &RootidArgs, out: &mut Output) -> Outcome {
    let paths = std::slice::from_ref(&args.at.path);
    let path = if args.at.path == "/" { &[] } else { paths };
    let mounted = MountedFiles::open_any(&args.at.volume.volume, path)?;
    let subvolume = if let Some((files, paths)) = mounted {
        of_mounted(&files, paths.first().unwrap_or(&args.at.path))?
    } else {
        let opened = OpenVolume::from_arg(global, &args.at.volume)?;
        opened.resolve(&args.at.path, Follow::Last)?.subvolume_id()
    };
    if global.json {
        json::document(out, json::Object::new().put("subvolume", subvolume))?;
    } else {
        writeln!(out, "{subvolume}")?;
    }
    Ok(Completion::Success)
}

fn of_mounted(files: &MountedFiles, path: &std::ffi::OsString) -> Result<u64, Failure> {
    let id = files.find(path, Follow::Last)?;
    let what = text::escaped(&text::bytes(path));
    let found = files.attributes(&id).map_err(|error| MountedFiles::failure(what.clone(), &error));
    found?.subvolume.ok_or_else(|| {
        Failure::new(what, "the mount does not tell its subvolume").hint("name its directory")
    })
}
