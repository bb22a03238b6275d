//! Targets: what is measured, as the command line names it.
//!
//! ```text
//! raw[:DEV]                            the device itself
//! kernel:FS[:MKFS;MOUNT][@DEV]         btrfs, xfs or ext4 of the kernel, with options
//! butternut[:IMG]                      the library, through the fio engine
//! mount[:IMG]                          the FUSE mount
//! dir:PATH                             a directory of any filesystem
//! custom:FILE.toml[@DEV]               a filesystem that commands of a file mount
//! ```
//!
//! Without DEV or IMG a target uses the device of `--device`.

pub(crate) mod custom;
pub(crate) mod device;
pub(crate) mod session;

use anyhow::{Context, Result, bail, ensure};
use custom::Custom;
use std::path::PathBuf;

/// Filesystems of the kernel that can be made and mounted.
const FILESYSTEMS: [&str; 3] = ["btrfs", "xfs", "ext4"];

/// A target.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// How samples name it: the text of the command line, without the device.
    pub(crate) label: String,
    pub(crate) kind: Kind,
    /// Its own device, as typed.
    pub(crate) device: Option<String>,
}

/// Which kind of target it is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Raw,
    Kernel { filesystem: String, mkfs: Vec<String>, mount: String },
    Butternut,
    Mount,
    Dir(PathBuf),
    Custom(Box<Custom>),
}

impl Kind {
    /// Returns the name that scenarios use.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Kernel { .. } => "kernel",
            Self::Butternut => "butternut",
            Self::Mount => "mount",
            Self::Dir(_) => "dir",
            Self::Custom(_) => "custom",
        }
    }

    /// Returns whether the switches of Butternut exist on it.
    pub(crate) fn has_switches(&self) -> bool {
        matches!(self, Self::Butternut | Self::Mount)
    }

    /// Returns the filesystem's name for messages, and for tools.
    pub(crate) fn filesystem(&self) -> Option<&str> {
        match self {
            Self::Kernel { filesystem, .. } => Some(filesystem),
            Self::Butternut | Self::Mount => Some("btrfs"),
            Self::Raw | Self::Dir(_) | Self::Custom(_) => None,
        }
    }
}

impl Target {
    /// Parses a target.
    ///
    /// # Errors
    /// The kind or the filesystem is not known, or a part is missing.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let given = |rest: &str| (!rest.is_empty()).then(|| rest.to_owned());
        let plain = |kind, rest| Self { label: text_of(&kind), kind, device: given(rest) };
        match kind {
            "raw" => Ok(plain(Kind::Raw, rest)),
            "butternut" => Ok(plain(Kind::Butternut, rest)),
            "mount" => Ok(plain(Kind::Mount, rest)),
            "kernel" => Self::kernel(rest).with_context(|| format!("target {text:?}")),
            "dir" => {
                ensure!(!rest.is_empty(), "target {text:?}: want dir:PATH");
                Ok(Self { label: text.to_owned(), kind: Kind::Dir(rest.into()), device: None })
            }
            "custom" => {
                let (file, device) = split_device(rest);
                ensure!(!file.is_empty(), "target {text:?}: want custom:FILE.toml");
                let custom = Custom::load(file)?;
                let label = format!("custom:{}", custom.name);
                Ok(Self { label, kind: Kind::Custom(Box::new(custom)), device })
            }
            _ => bail!(
                "target {text:?}: want raw, kernel:FS, butternut, mount, dir:PATH or \
                 custom:FILE.toml"
            ),
        }
    }

    fn kernel(rest: &str) -> Result<Self> {
        let (rest, device) = split_device(rest);
        let (filesystem, options) = rest.split_once(':').unwrap_or((rest, ""));
        ensure!(
            FILESYSTEMS.contains(&filesystem),
            "filesystem {filesystem:?}: want one of {}",
            FILESYSTEMS.join(", ")
        );
        let (mkfs, mount) = options.split_once(';').unwrap_or((options, ""));
        Ok(Self {
            label: format!("kernel:{rest}"),
            kind: Kind::Kernel {
                filesystem: filesystem.to_owned(),
                mkfs: mkfs.split_whitespace().map(str::to_owned).collect(),
                mount: mount.trim().to_owned(),
            },
            device,
        })
    }

    /// Returns whether it is measured on a block device or an image.
    pub(crate) fn needs_device(&self) -> bool {
        !matches!(self.kind, Kind::Dir(_))
    }
}

/// Parses the targets, and gives those with the same label labels with their devices.
///
/// # Errors
/// As of [`Target::parse`]; or a target is named twice.
pub(crate) fn parse_all(texts: &[String]) -> Result<Vec<Target>> {
    let mut targets = texts.iter().map(|text| Target::parse(text)).collect::<Result<Vec<_>>>()?;
    let labels: Vec<_> = targets.iter().map(|target| target.label.clone()).collect();
    for target in &mut targets {
        let same = labels.iter().filter(|label| **label == target.label).count();
        if same > 1
            && let Some(device) = &target.device
        {
            target.label = format!("{}@{device}", target.label);
        }
    }
    for (at, target) in targets.iter().enumerate() {
        let is_double = targets[..at].iter().any(|other| other.label == target.label);
        ensure!(!is_double, "target {}: named twice", target.label);
    }
    Ok(targets)
}

fn text_of(kind: &Kind) -> String {
    kind.name().to_owned()
}

/// Splits the device after the last `@`.
fn split_device(text: &str) -> (&str, Option<String>) {
    match text.rsplit_once('@') {
        Some((rest, device)) if !device.is_empty() => (rest, Some(device.to_owned())),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed() {
        let target = Target::parse("kernel:btrfs:-n 4096;nodatacow@/dev/sdx").unwrap();
        assert_eq!(target.label, "kernel:btrfs:-n 4096;nodatacow");
        assert_eq!(target.device.as_deref(), Some("/dev/sdx"));
        let Kind::Kernel { filesystem, mkfs, mount } = target.kind else { panic!() };
        assert_eq!((filesystem.as_str(), mount.as_str()), ("btrfs", "nodatacow"));
        assert_eq!(mkfs, ["-n", "4096"]);
        let target = Target::parse("butternut:/tmp/a.img").unwrap();
        assert_eq!(
            (target.label.as_str(), target.device.as_deref()),
            ("butternut", Some("/tmp/a.img"))
        );
        assert_eq!(Target::parse("dir:/srv").unwrap().label, "dir:/srv");
        assert!(Target::parse("raw").unwrap().device.is_none());
        for bad in ["", "disk", "kernel", "kernel:zfs", "dir:", "custom:"] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn equal_targets_are_told_apart_by_their_devices() {
        let both = ["kernel:xfs@/dev/a".to_owned(), "kernel:xfs@/dev/b".to_owned()];
        let labels: Vec<_> = parse_all(&both).unwrap().into_iter().map(|t| t.label).collect();
        assert_eq!(labels, ["kernel:xfs@/dev/a", "kernel:xfs@/dev/b"]);
        let twice = ["raw".to_owned(), "raw".to_owned()];
        assert!(parse_all(&twice).unwrap_err().to_string().contains("named twice"));
    }
}
