//! The `butternut` program: parses the command line, runs one command, and reports its result.
//!
//! Called as `mount.fuse.butternut` or `umount.fuse.butternut`, it is the helper that mount(8) and
//! umount(8) run for this filesystem type; with `fuseblk` in place of `fuse`, for mounts of block
//! devices (`mount -o blkdev`).

mod args;
mod commands;
mod control;
mod dump;
mod failure;
mod output;
mod volume;

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::Cli;
use failure::{Completion, Failure, Outcome, USAGE_STATUS};
use output::{Output, reporter, stderr_line, stderr_lines};

/// Exit status of a usage error of `check`, which is that of fsck(8).
const CHECK_USAGE_STATUS: u8 = 16;

fn main() -> ExitCode {
    butternut_sys::signal::ignore_file_size_limit();
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(name) = arguments.first().and_then(|argument| Path::new(argument).file_name()) {
        match name.to_str() {
            Some("mount.fuse.butternut" | "mount.fuseblk.butternut") => {
                let is_root = rustix::process::geteuid().is_root();
                match commands::mount::mount8::mount_arguments(&arguments, is_root) {
                    Some(translated) => arguments = translated,
                    None => return ExitCode::SUCCESS,
                }
            }
            Some("umount.fuse.butternut" | "umount.fuseblk.butternut") => {
                arguments = commands::mount::mount8::umount_arguments(&arguments);
            }
            _ => {}
        }
    }
    let status = if command_name(&arguments).is_some_and(|name| name == "check") {
        CHECK_USAGE_STATUS
    } else {
        USAGE_STATUS
    };
    let cli = match Cli::try_parse_from(expand_short_options(arguments)) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, status),
    };
    let mut out = Output::new();
    let outcome = commands::run(&cli, &mut out).and_then(|done| match out.flush() {
        // The status is that of the command, also where nothing reads its output any more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(done),
        // `check` has reported the error.
        Err(_) if matches!(done, Completion::Status(_)) => Ok(done),
        flushed => Ok(flushed.map(|()| done)?),
    });
    let status = report(outcome, &mut out);
    reporter::flush();
    status
}

/// Prints the message of a failure, and returns the exit status.
fn report(outcome: Outcome, out: &mut Output) -> ExitCode {
    match outcome {
        Ok(Completion::Success) | Err(Failure::StdoutClosed) => ExitCode::SUCCESS,
        Ok(Completion::PartialFailure) => ExitCode::FAILURE,
        Ok(Completion::Status(status)) => ExitCode::from(status),
        Err(failure) => {
            // Output printed before the failure is kept.
            out.flush().unwrap_or_default();
            stderr_line(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints help and version to stdout, and a usage error to stderr in the form of every failure.
fn usage(error: &clap::Error, status: u8) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print().map(|()| Completion::Success);
        return report(printed.map_err(Failure::from), &mut Output::new());
    }
    let text = error.to_string();
    stderr_lines(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(status)
}

/// Returns the command name as typed.
fn command_name(arguments: &[OsString]) -> Option<&OsString> {
    arguments.iter().skip(1).find(|argument| !argument.as_encoded_bytes().starts_with(b"-"))
}

/// Replaces two short options that differ from the global ones, because btrfs(8) and setfattr(1)
/// define them: `-q` is the parent UUID in `subvolume list`, `-v` is the value in `setfattr`.
fn expand_short_options(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let is = |argument: &OsString, names: &[&str]| names.iter().any(|name| argument == name);
    let mut names = arguments
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(_, argument)| !argument.as_encoded_bytes().starts_with(b"-"));
    let command = names.next();
    let subcommand = names.next().filter(|(_, argument)| is(argument, &["list"])).map(|(at, _)| at);
    let Some((at, argument)) = command else { return arguments };
    if is(argument, &["setfattr"]) {
        arguments[at + 1..].iter_mut().for_each(expand_value);
    } else if let (true, Some(list)) = (is(argument, &["subvolume", "sub"]), subcommand) {
        arguments[list + 1..].iter_mut().for_each(expand_parent_uuid);
    }
    arguments
}

fn expand_parent_uuid(argument: &mut OsString) {
    let Some(text) = argument.to_str() else { return };
    let letters = text.strip_prefix('-').unwrap_or_default();
    if !letters.is_empty() && letters.chars().all(char::is_alphabetic) {
        *argument = text.replace('q', "Q").into();
    }
}

fn expand_value(argument: &mut OsString) {
    let Some(value) = argument.as_encoded_bytes().strip_prefix(b"-v") else { return };
    let mut option = OsString::from(if value.is_empty() { "--value" } else { "--value=" });
    option.push(OsStr::from_bytes(value));
    *argument = option;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn short_options_follow_btrfs_and_setfattr() {
        let check = |line: &str| {
            let arguments = line.split(' ').map(OsString::from).collect();
            let arguments = expand_short_options(arguments);
            arguments
                .iter()
                .map(|argument| argument.to_str().unwrap())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            check("butternut -q subvolume list -aqs d"),
            "butternut -q subvolume list -aQs d"
        );
        assert_eq!(check("butternut sub list --quiet q"), "butternut sub list --quiet q");
        assert_eq!(check("butternut ls -q d"), "butternut ls -q d");
        let value = "butternut -v setfattr -n user.a --value --verbose d f";
        assert_eq!(check("butternut -v setfattr -n user.a -v --verbose d f"), value);
        assert_eq!(check("butternut setfattr -v0x00 d"), "butternut setfattr --value=0x00 d");
        assert_eq!(check("butternut getfattr -v d"), "butternut getfattr -v d");
    }
}
