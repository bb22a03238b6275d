//! `man`: writes the man pages, one per command, generated from the clap definition and the
//! [`examples`], and the [`overview`] of section 7.

mod examples;
mod overview;

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
    let path = args.directory.join("butternut.7");
    fs::write(&path, overview::page()).map_err(|error| named(&path, &error))?;
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
    let page = with_examples(page, examples::of(name));
    fs::write(directory.join(format!("{name}.1")), page)?;
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_page(directory, subcommand, &format!("{name}-{}", subcommand.get_name()))?;
    }
    Ok(())
}

/// Adds the section EXAMPLES before what is left to read up on.
fn with_examples(page: String, examples: &[examples::Example]) -> String {
    if examples.is_empty() {
        return page;
    }
    let mut section = ".SH EXAMPLES\n".to_owned();
    for (text, commands) in examples {
        section.push_str(".PP\n");
        section.push_str(&escaped(text));
        section.push_str("\n.PP\n.nf\n.RS 4\n");
        for line in commands.lines() {
            section.push_str(&escaped(line));
            section.push('\n');
        }
        section.push_str(".RE\n.fi\n");
    }
    let next = [".SH NOTES\n", ".SH VERSION\n"].iter().filter_map(|it| page.find(it)).min();
    let (before, after) = page.split_at(next.unwrap_or(page.len()));
    [before, &section, after].concat()
}

/// Returns a line of text in the form that roff prints unchanged.
fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
