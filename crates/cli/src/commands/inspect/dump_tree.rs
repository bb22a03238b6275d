//! `inspect dump-tree`: prints trees of an open volume.

use crate::args::{DumpTreeArgs, GlobalArgs};
use crate::dump;
use crate::failure::Outcome;
use crate::output::Output;
use crate::volume::OpenVolume;

pub(crate) fn run(global: &GlobalArgs, args: &DumpTreeArgs, out: &mut Output) -> Outcome {
    super::refuse_directories("dump-tree", &args.volume.volume)?;
    let opened = OpenVolume::from_args(global, &args.volume)?;
    dump::dump_tree::print(&opened.filesystem, global, args, out)
}
