//! An image on the shelf: its files, and the sidecar that says what it is.
//!
//! The shelf is `BUTTERNUT_IMAGES`, or `target/images` in the workspace. Each image is a directory
//! with its device files (sparse), `image.json` (this sidecar), and one `VIEW.manifest` per view:
//! what the kernel's own read-only mount showed of it when it was made.

use crate::manifest::Manifest;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub const SIDECAR: &str = "image.json";

/// The sidecar.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    /// One line for people: what is special about it.
    pub about: String,
    /// File names of the devices; the kernel mounts the first and is told of the others.
    pub devices: Vec<String>,
    /// Where the volume starts in each file.
    pub offset: u64,
    /// Arguments that `mkfs.btrfs` got, and options of the mount that filled it.
    pub mkfs: String,
    pub mount: String,
    /// Versions of the kernel and of btrfs-progs that made it.
    pub made_by: String,
    pub views: Vec<View>,
    #[serde(skip)]
    pub dir: PathBuf,
}

/// One way to mount an image, and so one manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub name: String,
    pub subvolume: Which,
    /// Indexes of the devices that are left out; not empty means a degraded mount.
    #[serde(default)]
    pub missing: Vec<usize>,
    /// The log tree is there and is to be left alone.
    #[serde(default)]
    pub ignores_log: bool,
    /// The kernel looked before the last change to the image, which it could not mount after.
    #[serde(default)]
    pub before_surgery: bool,
}

/// The subvolume that a view shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    Default,
    Id(u64),
    Path(String),
}

impl Image {
    /// Reads the sidecar of the image with this name.
    pub fn load(name: &str) -> Result<Self> {
        let dir = shelf().join(name);
        let path = dir.join(SIDECAR);
        let text = std::fs::read_to_string(&path).with_context(|| {
            format!("{}: run `scripts/make-images` (as root) to make it", path.display())
        })?;
        let mut image: Self =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        image.dir = dir;
        Ok(image)
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.devices.iter().map(|device| self.dir.join(device)).collect()
    }

    pub fn view(&self, name: &str) -> Option<&View> {
        self.views.iter().find(|view| view.name == name)
    }

    /// The device files that a view has.
    pub fn paths_of(&self, view: &View) -> Vec<PathBuf> {
        let present = self.paths().into_iter().enumerate();
        present.filter(|(at, _)| !view.missing.contains(at)).map(|(_, path)| path).collect()
    }

    /// What the kernel showed.
    pub fn kernel_manifest(&self, view: &View) -> Result<Manifest> {
        Manifest::read(&self.manifest_path(view))
    }

    pub fn manifest_path(&self, view: &View) -> PathBuf {
        self.dir.join(format!("{}.manifest", view.name))
    }
}

impl View {
    /// The usual view: the top-level subvolume, and so everything below it.
    pub fn top() -> Self {
        Self::of("top", Which::Id(5))
    }

    pub fn of(name: &str, subvolume: Which) -> Self {
        Self {
            name: name.to_owned(),
            subvolume,
            missing: Vec::new(),
            ignores_log: false,
            before_surgery: false,
        }
    }

    /// Options of `mount -o` for this view, which the kernel and our mount share.
    pub fn mount_options(&self) -> String {
        let mut options = Vec::new();
        match &self.subvolume {
            Which::Default => {}
            Which::Id(id) => options.push(format!("subvolid={id}")),
            Which::Path(path) => options.push(format!("subvol={path}")),
        }
        if !self.missing.is_empty() {
            options.push("degraded".to_owned());
        }
        options.join(",")
    }
}

/// The directory with all images.
pub fn shelf() -> PathBuf {
    std::env::var_os("BUTTERNUT_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/images"),
        PathBuf::from,
    )
}
