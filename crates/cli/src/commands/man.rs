//! `man`: the man pages, one per command, from the flag table.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::failure::{Done, Failure, Outcome};
use crate::flags::{LowArgs, ManArgs};

pub(crate) fn run(args: &ManArgs) -> Outcome {
    let named =
        |path: &Path, error: &std::io::Error| Failure::io(path.display().to_string(), error);
    fs::create_dir_all(&args.folder).map_err(|error| named(&args.folder, &error))?;
    let mut command = LowArgs::command();
    command.build();
    write_page(&args.folder, &command, "butternut").map_err(|error| named(&args.folder, &error))?;
    Ok(Done::Well)
}

/// Writes the page of `command` and of every command below it.
fn write_page(folder: &Path, command: &clap::Command, name: &str) -> std::io::Result<()> {
    let named = command.clone().name(name.to_owned()).display_name(name.to_owned());
    let mut page = Vec::new();
    // Without a date, so that the pages change only when the flags do.
    clap_mangen::Man::new(named).date("").render(&mut page)?;
    // What stands after the options is laid out already.
    let page = String::from_utf8_lossy(&page).replace(".SH EXTRA\n", ".SH NOTES\n.nf\n");
    fs::write(folder.join(format!("{name}.1")), page)?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_page(folder, below, &format!("{name}-{}", below.get_name()))?;
    }
    Ok(())
}
