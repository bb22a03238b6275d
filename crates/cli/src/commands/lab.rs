//! `lab` and `top`: become the program `butternut-lab`, which is apart so that this one does not
//! carry what only a benchmark and a live view need.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::args::{LabArgs, TopArgs};
use crate::failure::{Failure, Outcome};

const PROGRAM: &str = "butternut-lab";

/// Replaces this process; returns only if that fails.
pub(crate) fn run(args: &LabArgs) -> Outcome {
    become_program(&args.arguments)
}

/// Shows the live view of a mount, whose statistics this program requests.
pub(crate) fn top(args: &TopArgs) -> Outcome {
    let mut words: Vec<OsString> =
        vec!["top".into(), format!("--interval={}", args.interval).into()];
    if args.once {
        words.push("--once".into());
    }
    if let Ok(program) = std::env::current_exe() {
        words.extend(["--butternut".into(), program.into_os_string()]);
    }
    words.extend(["--".into(), args.mountpoint.clone().into_os_string()]);
    become_program(&words)
}

fn become_program(arguments: &[OsString]) -> Outcome {
    let Some(program) = find() else {
        return Err(Failure::new(PROGRAM, "is not installed beside butternut or on the PATH")
            .hint("install it with: cargo install --path lab --bin butternut-lab"));
    };
    let error = Command::new(&program).arg0(PROGRAM).args(arguments).exec();
    Err(Failure::io(program.display().to_string(), &error))
}

fn find() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(PROGRAM));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<_> = std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).collect();
    beside.into_iter().chain(on_path).find(|program| program.is_file())
}
