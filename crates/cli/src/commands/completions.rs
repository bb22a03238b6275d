//! `completions`: a completion script for a shell, from the flag table.

use clap::CommandFactory;

use crate::failure::Done;
use crate::flags::{CompletionsArgs, LowArgs};
use crate::output::Output;

pub(crate) fn run(args: &CompletionsArgs, out: &mut Output) -> Done {
    clap_complete::generate(args.shell, &mut LowArgs::command(), "butternut", out);
    Done::Well
}
