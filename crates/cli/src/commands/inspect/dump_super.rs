//! `inspect dump-super`: needs no volume that opens, only bytes at the places of superblocks.

use crate::dump;
use crate::failure::Outcome;
use crate::flags::{DumpSuperArgs, GlobalArgs};
use crate::output::Output;

pub(crate) fn run(global: &GlobalArgs, args: &DumpSuperArgs, out: &mut Output) -> Outcome {
    dump::dump_super::print(global, args, out)
}
