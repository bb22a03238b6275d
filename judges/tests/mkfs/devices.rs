//! Volumes on block devices.

use crate::judged::check;
use anyhow::{Context, Result, ensure};
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, LoopDevice, MountHow};
use butternut_judges::{command, tool};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

const BYTES: u64 = 200 << 20;

fn mkfs(words: &[&str], device: &Path) -> Vec<OsString> {
    let words = ["mkfs", "-q"].iter().chain(words).map(OsString::from);
    words.chain([device.as_os_str().to_owned()]).collect()
}

pub(crate) fn a_mounted_device_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("volume.img");
    fs::File::create(&image)?.set_len(BYTES)?;
    let device = LoopDevice::attach(&image, false, 0)?;
    command::run(&mkfs(&[], device.path()))?;
    let path = device.path().to_owned();
    let mount = KernelMount::over(vec![device], &MountHow::default())?;
    for target in [&path, &image] {
        let output = command::output(&mkfs(&["-f"], target))?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1), "{} is overwritten: {printed}", target.display());
        ensure!(printed.contains(": is busy: the kernel has mounted "), "{printed}");
        ensure!(printed.contains(&mount.root().display().to_string()), "{printed}");
    }
    mount.unmount()
}

pub(crate) fn a_block_device_is_discarded_unless_told_not_to() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("volume.img");
    for (words, is_kept) in [(&["-f", "-K"][..], true), (&["-f"], false)] {
        fs::write(&image, vec![0x5a; usize::try_from(BYTES)?])?;
        let device = LoopDevice::attach(&image, false, 0)?;
        command::run(&mkfs(words, device.path()))?;
        check(device.path())?;
        drop(device);
        let held = fs::metadata(&image)?.blocks() * 512;
        ensure!((held > BYTES / 2) == is_kept, "{words:?}: {held} bytes of the image are held");
    }
    Ok(())
}

/// The kernel detects a corrupt first copy of a tree block, and repairs it from the second copy.
pub(crate) fn the_kernel_repairs_from_the_second_copy() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("volume.img");
    fs::File::create(&image)?.set_len(BYTES)?;
    command::run(&mkfs(&["-m", "dup"], &image))?;
    // The offset of the first copy of the metadata chunk; the second copy is 32 MiB behind it.
    let (first, second) = (38_797_312, 72_351_744);
    let file = fs::OpenOptions::new().read(true).write(true).open(&image)?;
    let (mut good, mut copy) = (vec![0; 16384], vec![0; 16384]);
    file.read_exact_at(&mut good, first)?;
    file.read_exact_at(&mut copy, second)?;
    ensure!(good == copy && good.iter().any(|byte| *byte != 0), "the copies differ");
    file.write_all_at(&[0x77; 16384], first)?;
    drop(file);
    let mark = Mark::now()?;
    let mount = KernelMount::new(std::slice::from_ref(&image), &MountHow::default())?;
    let device = mount.loops().first().context("a mount has a device")?.path().to_owned();
    tool::run("btrfs", &tool::words_and_path("scrub start -B", mount.root()))?;
    mount.unmount()?;
    let name = device.file_name().context("a device has a name")?.to_string_lossy().into_owned();
    ensure!(!mark.complaints(&[&name])?.is_empty(), "the kernel logged no error");
    check(&image)
}
