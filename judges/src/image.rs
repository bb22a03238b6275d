//! A test image: its device files, and a JSON file that describes it.
//!
//! The images are in `BUTTERNUT_IMAGES`, or `target/images` in the workspace. Each image is a
//! directory with its device files (sparse), its description `image.json`, and one `VIEW.manifest`
//! for each view: what the kernel's read-only mount showed of it when the image was made.

use crate::manifest::Manifest;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub const SIDECAR: &str = "image.json";

/// The description of an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Image {
    pub name: String,
    /// One line on the purpose of the image.
    pub about: String,
    /// File names of the devices. The kernel mounts the first, and scans the others before.
    pub devices: Vec<String>,
    /// The offset of the volume in each file, in bytes.
    pub offset: u64,
    /// Arguments of `mkfs.btrfs`, and the options of the mount that filled the volume.
    pub mkfs: String,
    pub mount: String,
    /// Versions of the kernel and of btrfs-progs that made the image.
    pub made_by: String,
    pub views: Vec<View>,
    #[serde(skip)]
    pub dir: PathBuf,
}

/// One way to mount an image, with one manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub name: String,
    pub subvolume: Which,
    /// Indexes of the missing devices; if there are any, the mount is degraded.
    #[serde(default)]
    pub missing: Vec<usize>,
    /// Whether the image has a log tree. The kernel replays it in a copy of the image.
    #[serde(default)]
    pub has_log: bool,
    /// Whether the manifest was made before the last change to the image, after which the kernel
    /// cannot mount it.
    #[serde(default)]
    pub before_surgery: bool,
}

/// The subvolume of a view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    Default,
    Id(u64),
    Path(String),
}

impl Image {
    /// Loads the description of the image with this name.
    pub fn load(name: &str) -> Result<Self> {
        let dir = images_dir().join(name);
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

    /// Returns the device files that a view has.
    pub fn paths_of(&self, view: &View) -> Vec<PathBuf> {
        let present = self.paths().into_iter().enumerate();
        present.filter(|(at, _)| !view.missing.contains(at)).map(|(_, path)| path).collect()
    }

    /// Returns the manifest of the kernel's mount.
    pub fn kernel_manifest(&self, view: &View) -> Result<Manifest> {
        Manifest::read(&self.manifest_path(view))
    }

    pub fn manifest_path(&self, view: &View) -> PathBuf {
        self.dir.join(format!("{}.manifest", view.name))
    }
}

impl View {
    /// Returns the usual view: the top-level subvolume with everything below it.
    pub fn top() -> Self {
        Self::of("top", Which::Id(5))
    }

    pub fn of(name: &str, subvolume: Which) -> Self {
        Self {
            name: name.to_owned(),
            subvolume,
            missing: Vec::new(),
            has_log: false,
            before_surgery: false,
        }
    }

    /// Returns the `mount -o` options of this view, for the kernel's mount and ours.
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

/// Returns the directory of all images.
pub fn images_dir() -> PathBuf {
    std::env::var_os("BUTTERNUT_IMAGES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/images"),
        PathBuf::from,
    )
}
