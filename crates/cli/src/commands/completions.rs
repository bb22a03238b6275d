//! `completions`: prints a shell completion script, generated from the clap definition.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::failure::Completion;
use crate::output::Output;

pub(crate) fn run(args: &CompletionsArgs, out: &mut Output) -> Completion {
    clap_complete::generate(args.shell, &mut Cli::command(), "butternut", out);
    Completion::Success
}
