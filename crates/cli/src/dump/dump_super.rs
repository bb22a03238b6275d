//! `inspect dump-super`: superblock copies in the form of `btrfs inspect-internal dump-super`.

use std::io::Write;

use crate::failure::{Failure, Outcome};
use crate::flags::{DumpSuperArgs, GlobalArgs};

/// Prints the superblocks that `args` asks for.
pub(crate) fn print(global: &GlobalArgs, args: &DumpSuperArgs, out: &mut dyn Write) -> Outcome {
    let _ = (global, args, out);
    Err(Failure::new("inspect dump-super", "not supported"))
}
