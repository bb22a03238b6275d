//! `inspect inode-resolve`: the paths of an inode of the volume's root subvolume.

use butternut::FileId;

use crate::failure::{Done, Failure, Outcome};
use crate::flags::{GlobalArgs, InodeResolveArgs};
use crate::options::Opened;
use crate::output::{Output, json};

pub(crate) fn run(global: &GlobalArgs, args: &InodeResolveArgs, out: &mut Output) -> Outcome {
    let opened = Opened::many(global, &args.volume)?;
    let subvolume = opened.filesystem.root().subvolume;
    let id = FileId::new(subvolume, args.ino);
    let what = format!("inode {} of subvolume {subvolume}", args.ino);
    let paths = opened.filesystem.paths_of(id).map_err(|error| Failure::of(&*what, &error))?;
    if paths.is_empty() {
        return Err(Failure::new(what, "no name leads to it"));
    }
    let mut list = json::List::default();
    for path in paths {
        if global.json {
            list.push(out, json::Object::new().name("path", &path))?;
        } else {
            let path = [b"/", path.as_slice()].concat();
            let shown = out.shown(&path);
            out.line(&shown)?;
        }
    }
    if global.json {
        list.end(out)?;
    }
    Ok(Done::Well)
}
