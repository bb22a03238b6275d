//! The `butternut` command: its path, its arguments for an image, and running it.

use crate::image::{Image, View, Which};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Returns the path of the command under test: `BUTTERNUT_BIN`, or the command that was built with
/// this test.
pub fn butternut() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BUTTERNUT_BIN") {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("a test runs in target/PROFILE/deps")?;
    let path = profile.join("butternut");
    ensure!(path.exists(), "{} is missing: run `cargo build --workspace`", path.display());
    Ok(path)
}

/// Runs the command with any exit status.
pub fn output(args: &[OsString]) -> Result<Output> {
    Command::new(butternut()?).args(args).output().context("butternut")
}

/// Runs the command, which must succeed and print nothing to stderr.
pub fn run(args: &[OsString]) -> Result<Vec<u8>> {
    let output = output(args)?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !stderr.is_empty() {
        bail!("butternut {args:?}: {}: {stderr}", output.status);
    }
    Ok(output.stdout)
}

/// Returns the devices of a view, one argument for each.
pub fn devices(image: &Image, view: &View) -> Vec<OsString> {
    let suffix =
        if image.offset == 0 { String::new() } else { format!("?offset={}", image.offset) };
    let typed = |path: PathBuf| {
        let mut typed = path.into_os_string();
        typed.push(&suffix);
        typed
    };
    image.paths_of(view).into_iter().map(typed).collect()
}

/// Returns the view as one volume argument: devices separated by commas, and the subvolume.
pub fn volume(image: &Image, view: &View) -> OsString {
    let mut typed = OsString::new();
    for (at, path) in image.paths_of(view).into_iter().enumerate() {
        if at > 0 {
            typed.push(",");
        }
        typed.push(path);
    }
    match &view.subvolume {
        Which::Default => {}
        Which::Id(id) => typed.push(format!("@{id}")),
        Which::Path(path) => typed.push(format!("@{path}")),
    }
    if image.offset != 0 {
        typed.push(format!("?offset={}", image.offset));
    }
    typed
}
