//! Hard links: few, many in one directory (which needs extended references), across directories,
//! and with names of equal hashes.

use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

pub fn everything(root: &Path, many: usize) -> Result<()> {
    across(root)?;
    crowded(&root.join("crowded"), many)
}

/// Makes names of one file in several directories.
pub fn across(root: &Path) -> Result<()> {
    let first = root.join("first");
    fs::write(&first, "the same file everywhere")?;
    fs::hard_link(&first, root.join("second"))?;
    for number in 0..10 {
        let dir = root.join(format!("dir-{number}"));
        fs::create_dir(&dir)?;
        fs::hard_link(&first, dir.join("link"))?;
        fs::hard_link(&first, dir.join("another-link"))?;
    }
    std::os::unix::fs::symlink("first", root.join("symlink"))?;
    fs::hard_link(root.join("symlink"), root.join("symlink-link"))?;
    Ok(())
}

/// Makes `count` names of one file in one directory, and removes some of them.
pub fn crowded(dir: &Path, count: usize) -> Result<()> {
    fs::create_dir(dir)?;
    let first = dir.join("a-name-that-is-long-enough-to-fill-the-first-item-soon");
    fs::write(&first, "many names")?;
    for number in 0..count {
        let name = format!("link-with-a-name-that-takes-its-space-{number:08}");
        if let Err(error) = fs::hard_link(&first, dir.join(&name)) {
            // Without extended references the item of one leaf limits the number of names.
            let full = error.raw_os_error() == Some(rustix::io::Errno::MLINK.raw_os_error());
            return if full { Ok(()) } else { Err(error).context("link") };
        }
    }
    for number in (0..count).step_by(17) {
        fs::remove_file(dir.join(format!("link-with-a-name-that-takes-its-space-{number:08}")))?;
    }
    Ok(())
}

/// Makes names with one hash, of a file that needs extended references.
pub fn equal_hashes(dir: &Path) -> Result<()> {
    crowded(dir, 1200)?;
    let first = dir.join("a-name-that-is-long-enough-to-fill-the-first-item-soon");
    for name in super::names::colliding_names(20, 40, 3) {
        fs::hard_link(&first, super::names::child(dir, &name))?;
    }
    Ok(())
}
