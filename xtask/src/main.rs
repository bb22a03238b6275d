//! `cargo run -p xtask -- CHORE`: runs a chore.
//!
//! - `tidy` prints what breaks the rules of the sources.
//! - `surface` writes the list of the library's public surface.

use std::io::{Write, stdout};
use std::process::ExitCode;
use xtask::surface;

fn main() -> anyhow::Result<ExitCode> {
    let chore = std::env::args().nth(1);
    match chore.as_deref() {
        Some("tidy") => print_findings(),
        Some("surface") => write_surface(),
        _ => {
            writeln!(stdout(), "usage: cargo run -p xtask -- tidy|surface")?;
            Ok(ExitCode::from(2))
        }
    }
}

fn write_surface() -> anyhow::Result<ExitCode> {
    let repository = xtask::tidy::repository();
    std::fs::write(surface::kept(&repository), surface::list(&repository)?)?;
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
