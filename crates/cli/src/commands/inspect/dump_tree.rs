//! `inspect dump-tree`: the trees of a volume that opens.

use crate::dump;
use crate::failure::Outcome;
use crate::flags::{DumpTreeArgs, GlobalArgs};
use crate::options::Opened;
use crate::output::Output;

pub(crate) fn run(global: &GlobalArgs, args: &DumpTreeArgs, out: &mut Output) -> Outcome {
    let opened = Opened::many(global, &args.volume)?;
    dump::dump_tree::print(&opened.filesystem, global, args, out)
}
