//! The maker: brings the shelf up to date with the recipes.
//!
//! An image is made in a directory beside its place and renamed when it is complete, so a broken
//! run leaves nothing that looks finished. It is made again when its key changes: the sources of
//! its recipe and of what fills it, the kernel, and btrfs-progs. When only the walker changed,
//! the kernel's manifests are taken anew from the image as it is.

use crate::image::{Image, SIDECAR, View};
use crate::kernel_mount::{KernelMount, MountHow};
use crate::manifest::hash;
use crate::recipe::{Recipe, Workshop};
use crate::{recipes, tool, walk};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What every image depends on.
const FILLERS: [&str; 9] = [
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

/// What the manifests depend on beside the image.
const LOOKERS: [&str; 2] = [include_str!("walk.rs"), include_str!("manifest.rs")];

const KEYS: &str = "keys";

/// What happened to one image.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    pub took: Duration,
    pub result: Result<Work>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Nothing,
    LookedAgain,
    Made,
}

struct Job {
    recipe: Recipe,
    image_key: String,
    look_key: String,
    made_by: String,
}

/// Makes what is missing or out of date, `only` these if any are named; reports each at once.
pub fn make_all(
    shelf: &Path,
    only: &[String],
    workers: usize,
    report: &(dyn Fn(&Outcome) + Sync),
) -> Result<()> {
    fs::create_dir_all(shelf).with_context(|| shelf.display().to_string())?;
    let lock = fs::File::create(shelf.join("lock"))?;
    lock.lock().context("waiting for another run of the maker")?;
    let mut jobs = jobs(only)?;
    jobs.reverse();
    let queue = Mutex::new(jobs);
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
                while let Some(job) = next() {
                    let start = Instant::now();
                    let result = job.bring_up_to_date(shelf).context(job.recipe.name.clone());
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
    let fillers = FILLERS.concat();
    let look_key = format!("{:016x}", hash(LOOKERS.concat().as_bytes()));
    let mut jobs = Vec::new();
    for group in recipes::groups() {
        let source = format!("{made_by}\n{fillers}\n{}", group.source);
        let image_key = format!("{:016x}", hash(source.as_bytes()));
        for recipe in group.recipes {
            if only.is_empty() || only.contains(&recipe.name) {
                jobs.push(Job {
                    recipe,
                    image_key: image_key.clone(),
                    look_key: look_key.clone(),
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
        let (image_key, look_key) = keys.split_once(' ').unwrap_or_default();
        let is_made = image_key == self.image_key;
        if is_made && look_key == self.look_key {
            return Ok(Work::Nothing);
        }
        if is_made && self.recipe.surgery.is_none() {
            let shop = Workshop { recipe: self.recipe.clone(), dir: place };
            self.look(&shop)?;
            self.sign(&shop)?;
            return Ok(Work::LookedAgain);
        }
        let bench = all.join(format!("{}.making", self.recipe.name));
        remove_if_there(&bench)?;
        fs::create_dir(&bench)?;
        let shop = Workshop { recipe: self.recipe.clone(), dir: bench.clone() };
        shop.make().context("making the volume")?;
        self.look(&shop)?;
        if let Some(surgery) = self.recipe.surgery {
            surgery(&shop).context("surgery")?;
        }
        self.write_sidecar(&shop)?;
        self.sign(&shop)?;
        remove_if_there(&place)?;
        fs::rename(bench, place)?;
        Ok(Work::Made)
    }

    /// Records what the kernel shows of each view.
    fn look(&self, shop: &Workshop) -> Result<()> {
        let image = self.image(shop);
        for view in &self.recipe.views {
            kernel_view(&image, view)
                .and_then(|mount| walk::walk(mount.root()))
                .and_then(|manifest| manifest.write(&image.manifest_path(view)))
                .with_context(|| format!("the kernel's view {}", view.name))?;
        }
        Ok(())
    }

    fn image(&self, shop: &Workshop) -> Image {
        let name = |path: PathBuf| {
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
        };
        Image {
            name: self.recipe.name.clone(),
            about: self.recipe.about.clone(),
            devices: shop.devices().into_iter().filter(|path| path.exists()).map(name).collect(),
            offset: self.recipe.offset,
            mkfs: self.recipe.mkfs.clone(),
            mount: self.recipe.mount.clone(),
            made_by: self.made_by.clone(),
            views: self.recipe.views.clone(),
            dir: shop.dir.clone(),
        }
    }

    fn write_sidecar(&self, shop: &Workshop) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.image(shop))?;
        Ok(fs::write(shop.dir.join(SIDECAR), text)?)
    }

    /// The keys are written last: without them the image is made again.
    fn sign(&self, shop: &Workshop) -> Result<()> {
        Ok(fs::write(shop.dir.join(KEYS), format!("{} {}", self.image_key, self.look_key))?)
    }
}

/// The kernel's read-only mount of a view.
pub fn kernel_view(image: &Image, view: &View) -> Result<KernelMount> {
    let mut options = view.mount_options();
    if view.ignores_log {
        options.push_str(",rescue=nologreplay");
    }
    let how = MountHow { read_only: true, options: &options, offset: image.offset };
    KernelMount::new(&image.paths_of(view), &how)
}

fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| path.display().to_string()),
    }
}
