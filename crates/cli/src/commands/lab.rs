//! `lab`: becomes the program `butternut-lab`, which is apart so that this one does not carry what
//! only a benchmark needs.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::args::LabArgs;
use crate::failure::{Failure, Outcome};

const PROGRAM: &str = "butternut-lab";

/// Replaces this process; returns only if that fails.
pub(crate) fn run(args: &LabArgs) -> Outcome {
    let Some(program) = find() else {
        return Err(Failure::new(PROGRAM, "is not installed beside butternut or on the PATH")
            .hint("install it with: cargo install --path lab --bin butternut-lab"));
    };
    let error = Command::new(&program).arg0(PROGRAM).args(&args.arguments).exec();
    Err(Failure::io(program.display().to_string(), &error))
}

fn find() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(PROGRAM));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path: Vec<_> = std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).collect();
    beside.into_iter().chain(on_path).find(|program| program.is_file())
}
