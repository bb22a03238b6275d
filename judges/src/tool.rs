//! Runs external tools; an error contains what the tool printed.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// What to do if a tool is missing.
const MISSING: &str = "is it installed? `scripts/setup` installs everything the tests need";

/// Runs a tool, which must succeed, and returns its output.
pub fn run<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Result<Vec<u8>> {
    let output = output(program, args)?;
    if !output.status.success() {
        let line: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
        bail!(
            "`{program} {}` failed ({}): {}{}",
            line.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout)
        );
    }
    Ok(output.stdout)
}

/// Runs a tool with any exit status.
pub fn output<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Result<Output> {
    Command::new(program).args(args).output().with_context(|| format!("{program}: {MISSING}"))
}

/// Runs a tool, which must succeed, and returns its output as text.
pub fn text<A: AsRef<OsStr>>(program: &str, args: &[A]) -> Result<String> {
    Ok(String::from_utf8_lossy(&run(program, args)?).trim().to_owned())
}

/// Returns arguments for a tool: the words of a line, and a path.
pub fn words_and_path(words: &str, path: &Path) -> Vec<std::ffi::OsString> {
    words.split_whitespace().map(Into::into).chain([path.into()]).collect()
}

/// Copies a file and keeps its holes.
pub fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    let args = ["--sparse=always".as_ref(), "--reflink=auto".as_ref(), from, to];
    run("cp", &args.map(Path::as_os_str)).map(drop)
}
