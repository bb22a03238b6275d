//! An image after a crash: both drivers replay its log, and the database is whole in both.

use crate::crashes::Crashed;
use crate::transactions::{Acknowledged, verify};
use crate::workload::Database;
use anyhow::{Context, Result, bail, ensure};
use butternut_format::super_block::{SUPER_BLOCK_BYTES, SuperBlock, copy_offset};
use butternut_judges::fuse_mount::FuseMount;
use butternut_judges::kernel_log::Mark;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::tool;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Judges an image, which is changed. Returns the transactions that it holds.
pub(crate) fn judge(
    database: &dyn Database,
    crashed: &Crashed,
    outside: &Path,
) -> Result<Acknowledged> {
    let Crashed { image, acknowledged, .. } = crashed;
    let ours = image.with_extension("ours");
    tool::copy_sparse(image, &ours)?;
    let verified = |root: &Path| {
        let rows = database.recover(root, outside)?;
        verify(&rows, acknowledged, database.lost_max())
    };
    // btrfs-progs and the kernel use the first superblock only. A power cut may tear it.
    let mut by_the_kernel = None;
    if has_first_super_block(image)? {
        check(image).context("before the replay")?;
        by_the_kernel = Some(kernel(image, verified).context("after the kernel's replay")?);
        check(image).context("after the kernel's replay")?;
    }
    let mount = FuseMount::with(&[ours.clone().into()], "allow_other")?;
    let found = verified(mount.root()).context("after our replay")?;
    mount.unmount()?;
    check(&ours).context("after our replay")?;
    if let Some(other) = by_the_kernel {
        ensure!(found == other, "we replay {found:?} transactions, the kernel {other:?}");
    }
    std::fs::remove_file(ours)?;
    std::fs::remove_file(image)?;
    Ok(found)
}

fn kernel(image: &Path, verified: impl Fn(&Path) -> Result<Acknowledged>) -> Result<Acknowledged> {
    let log = Mark::now()?;
    let mount = KernelMount::new(&[image.to_path_buf()], &MountHow::default())?;
    let device = mount.loops().first().context("a mount has a device")?.path().to_path_buf();
    let device = device.file_name().context("a device has a name")?.to_string_lossy().into_owned();
    let found = verified(mount.root());
    mount.unmount()?;
    let complaints = log.complaints(&[&device])?;
    ensure!(complaints.is_empty(), "the kernel logged: {complaints:?}");
    found
}

fn has_first_super_block(image: &Path) -> Result<bool> {
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    let offset = copy_offset(0).context("the first superblock has an offset")?;
    std::fs::File::open(image)?.read_exact_at(&mut bytes, offset)?;
    Ok(SuperBlock::check(&bytes, 0).is_ok())
}

fn check(image: &Path) -> Result<()> {
    let args = tool::words_and_path("check --check-data-csum", image);
    let output = tool::output("btrfs", &args)?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let signs = ["ERROR", "WARNING", "error:", "mismatch", "invalid", "bad ", "errors "];
    if !output.status.success() || signs.iter().any(|sign| text.contains(sign)) {
        bail!("btrfs check: {text}");
    }
    Ok(())
}
