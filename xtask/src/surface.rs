//! The public surface of the library, one item per line, as rustdoc sees it.
//!
//! The list is kept in `crates/fs/public-api.txt` and compared by a test, so that the surface
//! changes only on purpose. Its documentation must be without warnings, such as broken links.
//!
//! rustdoc writes its JSON form only where unstable options are allowed. A wrapper allows them for
//! rustdoc alone, so that the crates beneath are compiled as always.

use anyhow::{Context, Result, ensure};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the list is kept.
pub fn kept(repository: &Path) -> PathBuf {
    repository.join("crates/fs/public-api.txt")
}

/// Returns the current list. Takes as long as a check of the library and everything beneath it.
///
/// # Errors
/// The library does not compile, or its documentation has warnings; the text is cargo's output.
pub fn list(repository: &Path) -> Result<String> {
    let scratch = tempfile::tempdir()?;
    let wrapper = scratch.path().join("rustdoc");
    fs::write(&wrapper, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = repository.join(target);
    let words = "rustdoc --quiet --package butternut --lib -- -D warnings \
                 -D rustdoc::private-intra-doc-links -Z unstable-options --output-format json";
    let output = Command::new(env!("CARGO"))
        .current_dir(repository)
        .args(words.split_whitespace())
        .env("RUSTDOC", &wrapper)
        .env("CARGO_TARGET_DIR", &target)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = public_api::Builder::from_rustdoc_json(target.join("doc/butternut.json"))
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()
        .context("the form of rustdoc's JSON: use the release of public-api for this compiler")?;
    Ok(listed.to_string())
}

/// Returns the lines that only one of two lists has, as a diff shows them.
pub fn difference(kept: &str, listed: &str) -> Vec<String> {
    let lacks = |list: &str, line: &str| !list.lines().any(|other| other == line);
    let removed = kept.lines().filter(|line| lacks(listed, line)).map(|line| format!("-{line}"));
    let added = listed.lines().filter(|line| lacks(kept, line)).map(|line| format!("+{line}"));
    removed.chain(added).collect()
}
