//! `inspect inode-resolve`: prints the paths of an inode in the root subvolume.

use butternut::FileId;

use crate::args::{GlobalArgs, InodeResolveArgs};
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &InodeResolveArgs, out: &mut Output) -> Outcome {
    let opened = OpenVolume::from_args(global, &args.volume)?;
    let subvolume = opened.filesystem.root().subvolume;
    let id = FileId::new(subvolume, args.ino);
    let what = format!("inode {} of subvolume {subvolume}", args.ino);
    let paths = opened.filesystem.paths_of(id).map_err(|error| Failure::of(&*what, &error))?;
    if paths.is_empty() {
        return Err(Failure::new(what, "the inode has no path"));
    }
    let mut list = json::List::default();
    for path in paths {
        if global.json {
            list.push(out, json::Object::new().name("path", &path))?;
        } else {
            let path = [b"/", path.as_slice()].concat();
            let shown = out.display_name(&path);
            out.line(&shown)?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Completion::Success)
}
