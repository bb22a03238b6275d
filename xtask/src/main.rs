//! `cargo run -p xtask -- tidy`: runs a chore and prints what it found.

use std::io::{Write, stdout};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let chore = std::env::args().nth(1);
    if chore.as_deref() != Some("tidy") {
        writeln!(stdout(), "usage: cargo run -p xtask -- tidy")?;
        return Ok(ExitCode::from(2));
    }
    let findings = xtask::tidy::tidy(&xtask::tidy::repository())?;
    let mut out = stdout().lock();
    for finding in &findings {
        writeln!(out, "{finding}")?;
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
