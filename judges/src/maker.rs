//! Makes the test images that are missing or out of date.
//!
//! An image is made in a temporary directory and renamed when it is complete, so an interrupted run
//! leaves no incomplete image. It is made again when its key changes: the sources of its recipe and
//! content, the kernel, and btrfs-progs. If only the sources of the walker changed, the kernel's
//! manifests of the existing image are made again.

use crate::image::{Image, SIDECAR, View};
use crate::kernel_mount::{KernelMount, MountHow};
use crate::manifest::hash;
use crate::recipe::{ImageBuilder, Recipe};
use crate::{recipes, tool, walk};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The sources that every image depends on.
const IMAGE_SOURCES: [&str; 9] = [
    include_str!("recipe.rs"),
    include_str!("populate/mod.rs"),
    include_str!("populate/attributes.rs"),
    include_str!("populate/contents.rs"),
    include_str!("populate/extents.rs"),
    include_str!("populate/links.rs"),
    include_str!("populate/names.rs"),
    include_str!("populate/seeded.rs"),
    include_str!("populate/subvolumes.rs"),
];

/// The sources that only the manifests depend on.
const MANIFEST_SOURCES: [&str; 2] = [include_str!("walk.rs"), include_str!("manifest.rs")];

const KEYS: &str = "keys";

/// The result for one image.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    pub took: Duration,
    pub result: Result<Work>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Nothing,
    ManifestsMade,
    Made,
}

struct Job {
    recipe: Recipe,
    image_key: String,
    manifest_key: String,
    made_by: String,
}

/// Makes the images that are missing or out of date: all, or those named in `only`. Reports each
/// image when it is done.
pub fn make_all(
    images_dir: &Path,
    only: &[String],
    workers: usize,
    report: &(dyn Fn(&Outcome) + Sync),
) -> Result<()> {
    fs::create_dir_all(images_dir).with_context(|| images_dir.display().to_string())?;
    let lock = fs::File::create(images_dir.join("lock"))?;
    lock.lock().context("waiting for another run of make-images")?;
    let mut jobs = jobs(only)?;
    jobs.reverse();
    let queue = Mutex::new(jobs);
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
                while let Some(job) = next() {
                    let start = Instant::now();
                    let result = job.bring_up_to_date(images_dir).context(job.recipe.name.clone());
                    let name = job.recipe.name.clone();
                    report(&Outcome { name, took: start.elapsed(), result });
                }
            });
        }
    });
    Ok(())
}

fn jobs(only: &[String]) -> Result<Vec<Job>> {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let progs = tool::text("mkfs.btrfs", &["--version"])?;
    let progs = progs.lines().next().unwrap_or_default().to_owned();
    let made_by = format!("Linux {kernel}, {progs}");
    let fillers = IMAGE_SOURCES.concat();
    let manifest_key = format!("{:016x}", hash(MANIFEST_SOURCES.concat().as_bytes()));
    let mut jobs = Vec::new();
    for group in recipes::groups() {
        let source = format!("{made_by}\n{fillers}\n{}", group.source);
        let image_key = format!("{:016x}", hash(source.as_bytes()));
        for recipe in group.recipes {
            if only.is_empty() || only.contains(&recipe.name) {
                jobs.push(Job {
                    recipe,
                    image_key: image_key.clone(),
                    manifest_key: manifest_key.clone(),
                    made_by: made_by.clone(),
                });
            }
        }
    }
    anyhow::ensure!(!jobs.is_empty(), "no recipe has such a name; `--list` shows them");
    Ok(jobs)
}

impl Job {
    fn bring_up_to_date(&self, all: &Path) -> Result<Work> {
        let place = all.join(&self.recipe.name);
        let keys = fs::read_to_string(place.join(KEYS)).unwrap_or_default();
        let (image_key, manifest_key) = keys.split_once(' ').unwrap_or_default();
        let is_made = image_key == self.image_key;
        if is_made && manifest_key == self.manifest_key {
            return Ok(Work::Nothing);
        }
        if is_made && self.recipe.surgery.is_none() {
            let builder = ImageBuilder { recipe: self.recipe.clone(), dir: place };
            self.write_manifests(&builder)?;
            self.write_keys(&builder)?;
            return Ok(Work::ManifestsMade);
        }
        let temporary = all.join(format!("{}.making", self.recipe.name));
        remove_if_there(&temporary)?;
        fs::create_dir(&temporary)?;
        let builder = ImageBuilder { recipe: self.recipe.clone(), dir: temporary.clone() };
        builder.make().context("making the volume")?;
        self.write_manifests(&builder)?;
        if let Some(surgery) = self.recipe.surgery {
            surgery(&builder).context("surgery")?;
        }
        self.write_sidecar(&builder)?;
        self.write_keys(&builder)?;
        remove_if_there(&place)?;
        fs::rename(temporary, place)?;
        Ok(Work::Made)
    }

    /// Writes the kernel's manifest of each view.
    fn write_manifests(&self, builder: &ImageBuilder) -> Result<()> {
        let image = self.image(builder);
        for view in &self.recipe.views {
            kernel_view(&image, view)
                .and_then(|mount| walk::walk(mount.root()))
                .and_then(|manifest| manifest.write(&image.manifest_path(view)))
                .with_context(|| format!("the kernel's view {}", view.name))?;
        }
        Ok(())
    }

    fn image(&self, builder: &ImageBuilder) -> Image {
        let name = |path: PathBuf| {
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        Image {
            name: self.recipe.name.clone(),
            about: self.recipe.about.clone(),
            devices: builder.devices().into_iter().filter(|path| path.exists()).map(name).collect(),
            offset: self.recipe.offset,
            mkfs: self.recipe.mkfs.clone(),
            mount: self.recipe.mount.clone(),
            made_by: self.made_by.clone(),
            views: self.recipe.views.clone(),
            dir: builder.dir.clone(),
        }
    }

    fn write_sidecar(&self, builder: &ImageBuilder) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.image(builder))?;
        Ok(fs::write(builder.dir.join(SIDECAR), text)?)
    }

    /// Writes the keys. This is the last step: without keys the image is made again.
    fn write_keys(&self, builder: &ImageBuilder) -> Result<()> {
        Ok(fs::write(builder.dir.join(KEYS), format!("{} {}", self.image_key, self.manifest_key))?)
    }
}

/// Mounts a view read-only with the kernel. An image with a log is not changed: a copy is mounted.
pub fn kernel_view(image: &Image, view: &View) -> Result<KernelMount> {
    let options = view.mount_options();
    let how = MountHow { read_only: !view.has_log, options: &options, offset: image.offset };
    if !view.has_log {
        return KernelMount::new(&image.paths_of(view), &how);
    }
    let mut copies = Vec::new();
    for path in image.paths_of(view) {
        let copy = path.with_extension("replayed");
        tool::copy_sparse(&path, &copy)?;
        copies.push(copy);
    }
    let mount = KernelMount::new(&copies, &how);
    for copy in copies {
        // The mount keeps the file.
        fs::remove_file(copy)?;
    }
    mount
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| path.display().to_string()),
    }
}
