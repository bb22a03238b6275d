//! `inspect dump-tree`: trees in the form of `btrfs inspect-internal dump-tree`.

use std::io::Write;

use butternut::Filesystem;

use crate::failure::{Failure, Outcome};
use crate::flags::{DumpTreeArgs, GlobalArgs};

/// Prints the trees or blocks that `args` asks for.
pub(crate) fn print(
    filesystem: &Filesystem,
    global: &GlobalArgs,
    args: &DumpTreeArgs,
    out: &mut dyn Write,
) -> Outcome {
    let _ = (filesystem, global, args, out);
    Err(Failure::new("inspect dump-tree", "not supported"))
}
