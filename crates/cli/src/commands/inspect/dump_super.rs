//! `inspect dump-super`: prints superblocks. It reads them directly and does not open the volume.

use crate::args::{DumpSuperArgs, GlobalArgs};
use crate::dump;
use crate::failure::Outcome;
use crate::output::Output;

pub(crate) fn run(global: &GlobalArgs, args: &DumpSuperArgs, out: &mut Output) -> Outcome {
    super::refuse_directories("dump-super", &args.devices)?;
    dump::dump_super::print(global, args, out)
}
