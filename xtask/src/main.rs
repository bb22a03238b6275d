//! `cargo run -p xtask -- CHORE`: runs a chore.
//!
//! - `tidy` prints what breaks the rules of the sources.
//! - `surface` writes the list of the library's public surface.
//! - `error-branches INJECTED ALL SOURCES` writes the page of the error branches that the tests
//!   have taken, from two exports of `llvm-cov` and the words for the sources that were built:
//!   `scripts/error-branches` calls it.

use std::io::{Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use xtask::{error_branches, surface};

const USAGE: &str = "usage: cargo run -p xtask -- tidy|surface|error-branches INJECTED ALL SOURCES";

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["tidy"] => print_findings(),
        ["surface"] => write_surface(),
        ["error-branches", injected, all, sources] => write_error_branches(injected, all, sources),
        _ => {
            writeln!(stdout(), "{USAGE}")?;
            Ok(ExitCode::from(2))
        }
    }
}

fn write_surface() -> anyhow::Result<ExitCode> {
    let repository = xtask::tidy::repository();
    std::fs::write(surface::kept(&repository), surface::list(&repository)?)?;
    Ok(ExitCode::SUCCESS)
}

fn write_error_branches(injected: &str, all: &str, sources: &str) -> anyhow::Result<ExitCode> {
    let repository = xtask::tidy::repository();
    let page = error_branches::page(&repository, Path::new(injected), Path::new(all), sources)?;
    std::fs::write(error_branches::kept(&repository), page)?;
    Ok(ExitCode::SUCCESS)
}

fn print_findings() -> anyhow::Result<ExitCode> {
    let findings = xtask::tidy::tidy(&xtask::tidy::repository())?;
    let mut out = stdout().lock();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
