//! `inspect inode-resolve`: prints the paths of an inode in the root subvolume; of a mounted
//! volume, in the subvolume that contains the directory.

use butternut::FileId;

use super::only_directory;
use crate::args::{GlobalArgs, InodeResolveArgs};
use crate::commands::mounted::inode_names;
use crate::failure::{Completion, Failure, Outcome};
use crate::output::{Output, json};
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &InodeResolveArgs, out: &mut Output) -> Outcome {
    let what = |subvolume: u64| format!("inode {} of subvolume {subvolume}", args.ino);
    let (paths, subvolume) = if let Some(mounted) = only_directory(&args.volume)? {
        inode_names::paths(&mounted, args.ino)?
    } else {
        let opened = OpenVolume::from_args(global, &args.volume)?;
        let subvolume = opened.filesystem.root().subvolume;
        let paths = opened.filesystem.paths_of(FileId::new(subvolume, args.ino));
        (paths.map_err(|error| Failure::of(what(subvolume), &error))?, subvolume)
    };
    if paths.is_empty() {
        return Err(Failure::new(what(subvolume), "the inode has no path"));
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
