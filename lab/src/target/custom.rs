//! Targets of other filesystems: a TOML file with the commands that make, mount and unmount one.
//!
//! ```toml
//! name = "zfs"
//! needs = ["zpool"]
//! mount = "zpool create -f -m {path} lab {device}"
//! unmount = "zpool destroy lab"
//! ```
//!
//! `sh -c` runs the commands. `{device}` is the block device, `{path}` an empty directory; both are
//! quoted. The files of a scenario are made in `{path}`, or in the directory that `path` names.

use crate::child;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The commands of a filesystem.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Custom {
    pub(crate) name: String,
    /// Programs that must be installed.
    #[serde(default)]
    pub(crate) needs: Vec<String>,
    /// Makes the filesystem and mounts it.
    mount: String,
    unmount: String,
    /// Directory of the files, where it is not the mount point.
    path: Option<String>,
}

impl Custom {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, or has not this form.
    pub(crate) fn load(file: &str) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("target custom:{file}: cannot be read"))?;
        let custom: Self = toml::from_str(&text).map_err(|error| {
            anyhow::anyhow!("target custom:{file}: {}", error.to_string().trim())
        })?;
        ensure!(!custom.name.is_empty(), "target custom:{file}: name: empty");
        Ok(custom)
    }

    /// Makes and mounts the filesystem, and returns the directory of the files.
    ///
    /// # Errors
    /// The command fails.
    pub(crate) fn mount(&self, device: &Path, path: &Path) -> Result<PathBuf> {
        shell(&filled(&self.mount, device, path)).context("mount")?;
        Ok(match &self.path {
            Some(text) => PathBuf::from(text.replace("{path}", &path.display().to_string())),
            None => path.to_owned(),
        })
    }

    /// Unmounts the filesystem.
    ///
    /// # Errors
    /// The command fails.
    pub(crate) fn unmount(&self, device: &Path, path: &Path) -> Result<()> {
        shell(&self.unmount_script(device, path)).context("unmount")
    }

    /// Returns the command that unmounts the filesystem.
    pub(crate) fn unmount_script(&self, device: &Path, path: &Path) -> String {
        filled(&self.unmount, device, path)
    }
}

fn filled(command: &str, device: &Path, path: &Path) -> String {
    command.replace("{device}", &quoted(device)).replace("{path}", &quoted(path))
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn shell(command: &str) -> Result<()> {
    child::run("sh", &["-c", command]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted() {
        let command = filled("m {device} {path}", Path::new("/dev/a b"), Path::new("/it's"));
        assert_eq!(command, r"m '/dev/a b' '/it'\''s'");
    }
}
