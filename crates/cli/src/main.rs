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

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, as_typed, of_btrfs};
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
    let command = as_typed::command_name(&arguments).cloned().unwrap_or_default();
    let status = if command == "check" { CHECK_USAGE_STATUS } else { USAGE_STATUS };
    if let Some(hint) = as_typed::elsewhere(&command) {
        let failure = Failure::new(command.display().to_string(), "is not a command").hint(hint);
        stderr_line(&failure.to_string());
        return ExitCode::from(status);
    }
    let arguments = as_typed::rewrite(arguments);
    let command = as_typed::command_path(&arguments);
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &command, status),
    };
    let mut out = Output::new();
    let outcome = commands::run(&cli, &mut out).and_then(|done| match out.flush() {
        // The status is that of the command, also where nothing reads its output any more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(done),
        // `check` has reported the error.
        Err(_) if matches!(done, Completion::Status(_)) => Ok(done),
        flushed => Ok(flushed.map(|()| done)?),
    });
    let status = report(outcome, &mut out, status);
    reporter::flush();
    status
}

/// Prints the message of a failure, and returns the exit status: `usage_status` for a usage error.
fn report(outcome: Outcome, out: &mut Output, usage_status: u8) -> ExitCode {
    match outcome {
        Ok(Completion::Success) | Err(Failure::StdoutClosed) => ExitCode::SUCCESS,
        Ok(Completion::PartialFailure) => ExitCode::FAILURE,
        Ok(Completion::Status(status)) => ExitCode::from(status),
        Err(failure) => {
            // Output printed before the failure is kept.
            out.flush().unwrap_or_default();
            stderr_line(&failure.to_string());
            if failure.is_usage() { ExitCode::from(usage_status) } else { ExitCode::FAILURE }
        }
    }
}

/// Prints help and version to stdout, and a usage error to stderr in the form of every failure.
fn usage(error: &clap::Error, command: &str, status: u8) -> ExitCode {
    if !error.use_stderr() {
        let printed = error.print().map(|()| Completion::Success);
        return report(printed.map_err(Failure::from), &mut Output::new(), status);
    }
    let text = of_btrfs::without_tip(&error.to_string());
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    match (of_btrfs::hint(command, error), text.split_once('\n')) {
        (Some(hint), Some((first, rest))) => stderr_lines(&format!("{first} ({hint})\n{rest}")),
        _ => stderr_lines(text),
    }
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_clap_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
