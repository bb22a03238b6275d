//! The kernel and `btrfs check` on one volume.

use crate::cases::Case;
use anyhow::{Context, Result, anyhow, ensure};
use butternut::{DevicePath, Filesystem, MountOptions};
use butternut_judges::compare::{Side, compare};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, LoopDevice, MountHow};
use butternut_judges::populate::contents;
use butternut_judges::{command, library, tool, walk};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Smaller volumes hold a few small files only: their block groups are small, and the kernel
/// reserves a part of them.
const ROOMY_BYTES: u64 = 300 << 20;

/// A part of the content that the kernel writes: the directory, and the function that fills it.
type Part = (&'static str, fn(&Path) -> Result<()>);

const SMALL: [Part; 1] = [("appended", contents::appended)];
const ROOMY: [Part; 4] = [
    ("appended", contents::appended),
    ("sources", contents::sources),
    ("larger", contents::large),
    ("sizes", contents::sizes),
];

pub(crate) fn the_kernel_accepts_the_volume(case: &Case) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("volume.img");
    make(&image, case)?;
    let empty = library_view(&image, case)?;
    ensure!(empty.entries.len() == 1, "{} entries in a new volume", empty.entries.len());
    let mark = Mark::now()?;
    let device = LoopDevice::attach(&image, false, case.offset)?;
    check(device.path()).context("as it was made")?;
    let name = device.path().to_owned();
    // Without a free space tree the kernel would use the v1 space cache, and log a warning.
    let has_free_space_tree = !case.features.contains(&"^free-space-tree");
    let options = if has_free_space_tree { "" } else { "nospace_cache" };
    let mount = KernelMount::over(vec![device], &MountHow { options, ..MountHow::default() })?;
    fill(mount.root(), case)?;
    tool::run("btrfs", &["filesystem".as_ref(), "sync".as_ref(), mount.root().as_os_str()])?;
    tool::run("btrfs", &tool::words_and_path("scrub start -B", mount.root()))?;
    let kernel = walk::walk(mount.root())?;
    mount.unmount()?;
    let short = name.file_name().context("a loop device has a name")?.to_string_lossy();
    let complaints = mark.complaints(&[&short])?;
    ensure!(complaints.is_empty(), "the kernel logged: {complaints:?}");
    let device = LoopDevice::attach(&image, true, case.offset)?;
    check(device.path()).context("as the kernel left it")?;
    drop(device);
    let ours = library_view(&image, case)?;
    let kernel = Side { name: "kernel", manifest: &kernel };
    let ours = Side { name: "library", manifest: &ours };
    compare(kernel, ours, &[]).map(drop).map_err(|text| anyhow!("{text}"))
}

/// Makes the volume of a case. If it starts at an offset, the image has junk in front of it.
fn make(image: &Path, case: &Case) -> Result<()> {
    let mut typed = image.as_os_str().to_owned();
    if case.offset != 0 {
        fs::File::create(image)?.set_len(case.offset + case.bytes + (1 << 20))?;
        typed.push(format!("?offset={}", case.offset));
    }
    let mut words: Vec<OsString> = vec!["mkfs".into(), "-q".into(), "--size".into()];
    words.push(case.bytes.to_string().into());
    words.extend(case.words().into_iter().map(Into::into));
    words.push(typed);
    command::run(&words).map(drop)
}

fn library_view(image: &Path, case: &Case) -> Result<butternut_judges::manifest::Manifest> {
    let device = DevicePath { path: PathBuf::from(image), offset: case.offset, bytes: None };
    let filesystem = Filesystem::open(&[device], &MountOptions::default())?;
    let total = filesystem.super_block().raw().total_bytes.get();
    ensure!(total == case.bytes, "total_bytes: have {total}, want {}", case.bytes);
    library::walk(&filesystem)
}

/// `btrfs check` finds nothing and prints only its phases; our checker finds nothing.
pub(crate) fn check(device: &Path) -> Result<()> {
    let output = tool::output("btrfs", &tool::words_and_path("check --check-data-csum", device))?;
    let (printed, progress) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let is_clean = output.status.success() && printed.contains("no error found");
    let is_quiet = progress.lines().all(|line| line.is_empty() || line.starts_with('['));
    ensure!(is_clean && is_quiet, "btrfs check: {}: {printed}{progress}", output.status);
    let ours = ["check", "-q", "--check-data-csum"].map(OsString::from);
    command::run(&[&ours[..], &[device.into()]].concat()).map(drop)
}

fn fill(root: &Path, case: &Case) -> Result<()> {
    let parts = match case.bytes < ROOMY_BYTES {
        // The kernel has no space for a single file in these, also with `mkfs.btrfs`.
        true if case.node_kib > 16 => return Ok(()),
        true => &SMALL[..],
        false => &ROOMY,
    };
    for (name, part) in parts {
        let dir = root.join(name);
        fs::create_dir(&dir)?;
        part(&dir).with_context(|| (*name).to_owned())?;
    }
    fs::rename(root.join("appended/appended-100"), root.join("moved"))?;
    fs::remove_file(root.join("appended/appended-1000"))?;
    Ok(())
}
