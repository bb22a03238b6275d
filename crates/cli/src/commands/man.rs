//! `man`: writes the man pages, one per command, generated from the clap definition.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::args::{Cli, ManArgs};
use crate::failure::{Completion, Failure, Outcome};

pub(crate) fn run(args: &ManArgs) -> Outcome {
    let named =
        |path: &Path, error: &std::io::Error| Failure::io(path.display().to_string(), error);
    fs::create_dir_all(&args.directory).map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return Failure::new(args.directory.display().to_string(), "is not a directory")
                .hint("name a directory for the pages");
        }
        named(&args.directory, &error)
    })?;
    let mut command = Cli::command();
    command.build();
    write_page(&args.directory, &command, "butternut")
        .map_err(|error| named(&args.directory, &error))?;
    Ok(Completion::Success)
}

/// Writes the page of `command` and of its subcommands.
fn write_page(directory: &Path, command: &clap::Command, name: &str) -> std::io::Result<()> {
    let named = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let mut page = Vec::new();
    // Without a date, so that the pages change only when the definition does.
    clap_mangen::Man::new(named).date("").render(&mut page)?;
    // The text after the options is already formatted.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\n", ".SH NOTES\n.nf\n");
    fs::write(directory.join(format!("{name}.1")), page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_page(directory, subcommand, &format!("{name}-{}", subcommand.get_name()))?;
    }
    Ok(())
}
