//! Volumes of the kernel, changed through the trees: every inode of every subvolume in the kernel's
//! images gets an xattr, then half of them lose it again. Tree blocks that snapshots share are
//! copied. `btrfs check` and the kernel find no damage, and the kernel writes to the volume and
//! scrubs it.

use anyhow::{Context, Result, anyhow, bail, ensure};
use butternut::{DevicePath, Filesystem, MountOptions};
use butternut_device::{Device, FileDevice, OpenDevice};
use butternut_format::checksum::name_hash;
use butternut_format::dir::{DirEntry, EntryKind};
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_judges::image::{self, Image};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::{recipes, tool, trial};
use butternut_tree::{Forest, ForestOptions, Need, TreeError};
use butternut_volume::{OpenOptions, Volume};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The maximum number of changed inodes in a tree: more, as the 60,000 of one image, would only
/// take longer.
const INODES_MAX: usize = 4000;

/// Images that must not be opened for writing, by name, and the feature that the error must name.
const REFUSED: [(&str, &str); 4] =
    [("seed", "seed"), ("sprout", "devices"), ("raid5", "profile"), ("raid6", "profile")];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for recipe in recipes::all() {
        let name = recipe.name.clone();
        trials.push(trial::trial(&format!("{name}::attributes"), move || attributes(&name)));
    }
    trial::run(trials)
}

/// Copies of an image's files, which are deleted with the test.
struct Copies {
    _dir: tempfile::TempDir,
    paths: Vec<PathBuf>,
}

impl Copies {
    fn of(image: &Image) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("butternut-past-").tempdir()?;
        let mut paths = Vec::new();
        for (at, path) in image.paths().into_iter().enumerate() {
            let copy = dir.path().join(format!("device-{at}"));
            tool::copy_sparse(&path, &copy)?;
            paths.push(copy);
        }
        Ok(Self { _dir: dir, paths })
    }

    fn open(&self, offset: u64) -> Result<Arc<Forest>, TreeError> {
        let how = OpenDevice { writable: true, offset, ..OpenDevice::default() };
        let open = |path: &PathBuf| -> Arc<dyn Device> {
            Arc::new(FileDevice::open(path, &how).expect("no other test uses the copy"))
        };
        let devices = self.paths.iter().map(open).collect();
        let volume = Volume::open(devices, OpenOptions::default())
            .map_err(|source| TreeError::Assemble(Box::new(source)))?;
        Forest::open_writable(Arc::new(volume), ForestOptions::default())
    }

    /// Opens the trees after the library has replayed the log, if there is one.
    fn open_replayed(&self, offset: u64) -> Result<Arc<Forest>, TreeError> {
        match self.open(offset) {
            Err(TreeError::Unwritable(refused)) if refused.to_string().contains("log tree") => {
                let paths: Vec<DevicePath> = self.paths.iter().map(DevicePath::from).collect();
                let options = MountOptions::default().read_only(false);
                let filesystem = Filesystem::open(&paths, &options).expect("a log of the kernel");
                filesystem.close().expect("a commit");
                self.open(offset)
            }
            forest => forest,
        }
    }
}

fn attributes(name: &str) -> Result<()> {
    let image = Image::load(name)?;
    let copies = Copies::of(&image)?;
    let _alone = alone(&copies)?;
    let forest = match copies.open_replayed(image.offset) {
        Err(TreeError::Unwritable(refused)) => return is_rightly_refused(name, &refused),
        Err(TreeError::Assemble(_)) if image.views.iter().all(|view| !view.missing.is_empty()) => {
            return Ok(());
        }
        forest => forest.map_err(|error| anyhow!(error)).context("opening")?,
    };
    if image.offset == 0 && !image.views.iter().any(|view| view.before_surgery) {
        judge(&copies, image.offset, "before any change")?;
    }
    for subvolume in subvolumes(&forest)? {
        let inodes = inodes(&forest, subvolume)?;
        put(&forest, subvolume, &inodes).with_context(|| format!("subvolume {subvolume}"))?;
    }
    forest.commit()?;
    judge(&copies, image.offset, "with xattrs")?;
    for subvolume in subvolumes(&forest)? {
        let inodes = inodes(&forest, subvolume)?;
        take(&forest, subvolume, &inodes)?;
    }
    forest.commit()?;
    drop(forest);
    judge(&copies, image.offset, "with half of the xattrs")?;
    by_the_kernel(&copies, image.offset, name.contains("sprout"))?;
    judge(&copies, image.offset, "after the kernel wrote")?;
    copies.open(image.offset).map_err(|error| anyhow!(error)).context("reopening")?;
    Ok(())
}

/// Locks the fsid of a volume. Two volumes with one fsid confuse tools that search for devices, so
/// tests with the same fsid run one after the other.
fn alone(copies: &Copies) -> Result<std::fs::File> {
    let mut fsid = [0; 16];
    let path = copies.paths.first().context("a device")?;
    std::fs::File::open(path)?.read_exact_at(&mut fsid, 65536 + 32)?;
    let name = format!("{:032x}.lock", u128::from_le_bytes(fsid));
    let lock = std::fs::File::create(image::images_dir().join(name))?;
    lock.lock()?;
    Ok(lock)
}

fn is_rightly_refused(name: &str, refused: &butternut_format::refused::Refused) -> Result<()> {
    let why = refused.to_string();
    let known = REFUSED.iter().any(|(part, field)| name.contains(part) && why.contains(field));
    ensure!(known, "refused: {why}");
    Ok(())
}

fn subvolumes(forest: &Arc<Forest>) -> Result<Vec<TreeId>> {
    let mut cursor = forest.root_tree().cursor();
    cursor.seek(&Key::MIN)?;
    let mut found = Vec::new();
    while let Some((key, data)) = cursor.item_parts() {
        if key.item_type == ItemType::ROOT_ITEM && TreeId(key.objectid).is_subvolume() {
            let root = butternut_format::root::RootItem::check(key, data)?;
            if root.refs() > 0 {
                found.push(TreeId(key.objectid));
            }
        }
        cursor.advance()?;
    }
    Ok(found)
}

fn inodes(forest: &Arc<Forest>, subvolume: TreeId) -> Result<Vec<u64>> {
    let tree = forest.tree(subvolume)?.context("a tree for each root")?;
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN)?;
    let mut found = Vec::new();
    while let Some(key) = cursor.key().filter(|_| found.len() < INODES_MAX) {
        if key.item_type == ItemType::INODE_ITEM && key.objectid >= 256 {
            found.push(key.objectid);
        }
        cursor.advance()?;
    }
    Ok(found)
}

const NAME: &[u8] = b"user.judged";

fn key_of(ino: u64) -> Key {
    Key::new(ino, ItemType::XATTR_ITEM, name_hash(NAME))
}

fn put(forest: &Arc<Forest>, subvolume: TreeId, inodes: &[u64]) -> Result<()> {
    for some in inodes.chunks(64) {
        let handle = forest.join(Need::items(128))?;
        let edit = handle.tree(subvolume)?;
        for ino in some {
            let value = ino.to_le_bytes();
            let entry = DirEntry {
                location: Key::MIN,
                transid: handle.generation(),
                kind: EntryKind::Xattr,
                name: NAME,
                data: &value,
            };
            edit.insert(&key_of(*ino), &entry.to_bytes())?;
        }
    }
    Ok(())
}

fn take(forest: &Arc<Forest>, subvolume: TreeId, inodes: &[u64]) -> Result<()> {
    for some in inodes.chunks(64) {
        let handle = forest.join(Need::items(64).deleting())?;
        let edit = handle.tree(subvolume)?;
        for ino in some.iter().step_by(2) {
            ensure!(edit.remove(&key_of(*ino))?, "inode {ino} had it");
        }
    }
    Ok(())
}

fn judge(copies: &Copies, offset: u64, when: &str) -> Result<()> {
    if offset != 0 {
        return Ok(());
    }
    let path = copies.paths.first().context("a device")?;
    let mut loops = Vec::new();
    if copies.paths.len() > 1 {
        for path in &copies.paths {
            loops.push(butternut_judges::kernel_mount::LoopDevice::attach(path, true, 0)?);
        }
    }
    let path = loops.first().map_or(path.as_path(), |first| first.path());
    // Forced, because another test may have mounted a volume with the same fsid.
    let words = tool::words_and_path("check --force --check-data-csum", path);
    let output = std::process::Command::new("btrfs").args(&words).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let is_clean = |line: &str| !line.contains("ERROR") || line.contains("cannot scan");
    if !output.status.success() || !text.lines().all(is_clean) || text.contains("mismatch") {
        bail!("{when}: btrfs check: {text}");
    }
    Ok(())
}

/// The kernel mounts the volume, sees the xattrs, writes and scrubs, and logs nothing.
fn by_the_kernel(copies: &Copies, offset: u64, has_seed: bool) -> Result<()> {
    let log = Mark::now()?;
    let how = MountHow { offset, ..MountHow::default() };
    let mount = KernelMount::new(&copies.paths, &how)?;
    let root: &Path = mount.root();
    std::fs::write(root.join("judged.txt"), "by the kernel")?;
    for ino in 0..200 {
        std::fs::write(root.join(format!("judged-{ino}")), vec![7; 5000])?;
    }
    tool::run("sync", &tool::words_and_path("-f", root))?;
    // The kernel's scrub considers the blocks of a seed device as those of another volume.
    if !has_seed {
        let words = tool::words_and_path("scrub start -B -r", root);
        let report = tool::text("btrfs", &words)?;
        ensure!(report.contains("no errors found"), "scrub: {report}");
    }
    let names: Vec<String> =
        mount.loops().iter().map(|device| device.path().display().to_string()).collect();
    mount.unmount()?;
    let names: Vec<&str> = names.iter().map(|name| name.trim_start_matches("/dev/")).collect();
    let mut complaints = log.complaints(&names)?;
    // Logged at every mount of a v1 space cache, and of a seed with another device file.
    complaints.retain(|line| !line.contains("deprecated") && !line.contains("maj:min changed"));
    ensure!(complaints.is_empty(), "the kernel's log: {complaints:?}");
    Ok(())
}
