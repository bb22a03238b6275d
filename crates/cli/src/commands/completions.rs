//! `completions`: a completion script for a shell, from the flag table.

use clap::CommandFactory;

use crate::failure::{Done, Outcome};
use crate::flags::{CompletionsArgs, LowArgs};
use crate::output::Output;

pub(crate) fn run(args: &CompletionsArgs, out: &mut Output) -> Outcome {
    clap_complete::generate(args.shell, &mut LowArgs::command(), "butternut", out);
    Ok(Done::Well)
}
