//! Recipes: how an image is made. A recipe is data (name, devices, options) and one function.
//!
//! Most recipes run mkfs, mount, and fill the volume. A recipe that needs several mounts, or a copy
//! of a mounted volume, has a function of its own over a [`ImageBuilder`].

use crate::image::{View, Which};
use crate::kernel_mount::{KernelMount, MountHow};
use crate::tool;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// Fills a mounted volume, given the root of its top-level subvolume.
pub type Fill = fn(&Path) -> Result<()>;

/// Makes a whole volume.
pub type Own = fn(&ImageBuilder) -> Result<()>;

#[derive(Debug, Clone)]
pub enum Make {
    Fill(Fill),
    Own(Own),
}

#[derive(Debug, Clone)]
#[must_use]
pub struct Recipe {
    pub name: String,
    pub about: String,
    pub devices_mib: Vec<u64>,
    pub mkfs: String,
    pub mount: String,
    pub offset: u64,
    pub make: Make,
    /// Changes that are made after the kernel's manifests.
    pub surgery: Option<Own>,
    pub views: Vec<View>,
}

impl Recipe {
    /// Returns a recipe with one device of 256 MiB, the usual content, and a view of the top level.
    pub fn new(name: &str, about: &str) -> Self {
        Self {
            name: name.to_owned(),
            about: about.to_owned(),
            devices_mib: vec![256],
            mkfs: String::new(),
            mount: String::new(),
            offset: 0,
            make: Make::Fill(crate::populate::everything),
            surgery: None,
            views: vec![View::top()],
        }
    }

    pub fn mkfs(mut self, args: &str) -> Self {
        args.clone_into(&mut self.mkfs);
        self
    }

    pub fn mount(mut self, options: &str) -> Self {
        options.clone_into(&mut self.mount);
        self
    }

    pub fn devices(mut self, mib: &[u64]) -> Self {
        self.devices_mib = mib.to_vec();
        self
    }

    pub fn fill(mut self, fill: Fill) -> Self {
        self.make = Make::Fill(fill);
        self
    }

    pub fn own(mut self, own: Own) -> Self {
        self.make = Make::Own(own);
        self
    }

    /// Sets changes that are made after the kernel's manifests.
    pub fn surgery(mut self, surgery: Own) -> Self {
        self.surgery = Some(surgery);
        for view in &mut self.views {
            view.before_surgery = true;
        }
        self
    }

    pub fn view(mut self, name: &str, subvolume: Which) -> Self {
        self.views.push(View::of(name, subvolume));
        self
    }

    /// Adds views with these sets of devices missing.
    pub fn missing(mut self, sets: &[&[usize]]) -> Self {
        for set in sets {
            let ids: Vec<String> = set.iter().map(|at| (at + 1).to_string()).collect();
            let mut view = View::of(&format!("without-{}", ids.join("-")), Which::Id(5));
            view.missing = set.to_vec();
            self.views.push(view);
        }
        self
    }

    /// Every view has a log tree.
    pub fn has_log(mut self) -> Self {
        for view in &mut self.views {
            view.has_log = true;
        }
        self
    }
}

/// The directory in which an image is made.
#[derive(Debug)]
pub struct ImageBuilder {
    pub recipe: Recipe,
    pub dir: PathBuf,
}

impl ImageBuilder {
    pub fn device(&self, at: usize) -> PathBuf {
        self.dir.join(format!("device-{}.img", at + 1))
    }

    pub fn devices(&self) -> Vec<PathBuf> {
        (0..self.recipe.devices_mib.len()).map(|at| self.device(at)).collect()
    }

    /// Creates the empty device files.
    pub fn allocate(&self) -> Result<()> {
        for (at, mib) in self.recipe.devices_mib.iter().enumerate() {
            let path = self.device(at);
            let file = File::create(&path).with_context(|| path.display().to_string())?;
            file.set_len(self.recipe.offset + mib * MIB)?;
        }
        Ok(())
    }

    /// Runs mkfs on all devices.
    pub fn mkfs(&self) -> Result<()> {
        let mut args = vec!["-q".into(), "-f".into(), "-K".into()];
        args.extend(self.recipe.mkfs.split_whitespace().map(std::ffi::OsString::from));
        if self.recipe.offset == 0 {
            args.extend(self.devices().into_iter().map(Into::into));
            return tool::run("mkfs.btrfs", &args).map(drop);
        }
        let device =
            crate::kernel_mount::LoopDevice::attach(&self.device(0), false, self.recipe.offset)?;
        args.push(device.path().into());
        tool::run("mkfs.btrfs", &args).map(drop)
    }

    /// Mounts the volume for writing, with the recipe's options and the top level as root.
    pub fn mount(&self) -> Result<KernelMount> {
        self.mount_with(&self.devices(), &self.recipe.mount)
    }

    pub fn mount_with(&self, devices: &[PathBuf], options: &str) -> Result<KernelMount> {
        // A flush would wait for the disk below the image, and an incomplete image is made again.
        let common = "subvolid=5,nobarrier";
        let options =
            if options.is_empty() { common.to_owned() } else { format!("{common},{options}") };
        let how = MountHow { read_only: false, options: &options, offset: self.recipe.offset };
        KernelMount::new(devices, &how)
    }

    /// Makes the volume as the recipe says.
    pub fn make(&self) -> Result<()> {
        self.allocate()?;
        match self.recipe.make {
            Make::Own(own) => own(self),
            Make::Fill(fill) => {
                self.mkfs()?;
                let mount = self.mount()?;
                fill(mount.root())?;
                // Discarding turns freed space into holes: tests must not find old copies of
                // sectors there, and the images stay small.
                tool::run("sync", &["-f".as_ref(), mount.root().as_os_str()])?;
                tool::run("fstrim", &[mount.root()])?;
                mount.unmount()
            }
        }
    }
}
