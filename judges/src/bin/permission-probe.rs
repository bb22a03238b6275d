//! `permission-probe DIR`: runs every case of the permission table in DIR with the credentials of
//! this process, and prints the result of each on one line.

use anyhow::{Context, Result};
use butternut_judges::permissions;
use std::io::Write;
use std::path::PathBuf;

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).context("usage: permission-probe DIR")?;
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut out = std::io::stdout().lock();
    for line in permissions::try_all(&PathBuf::from(dir)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
