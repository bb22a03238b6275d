//! Subjects of the model on a mounted volume. Each subject is an empty directory of its own, so
//! many scripts can run on one volume.

use anyhow::Result;
use butternut_sim::model::Rules;
use butternut_sim::posix::PosixSubject;
use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

/// A mounted volume.
pub trait Mounted {
    fn root(&self) -> Result<&Path>;

    /// Unmounts the volume and mounts it again.
    fn remount(&mut self) -> Result<()>;

    /// Returns how the mount may differ from the kernel's btrfs.
    fn rules(&self) -> Rules {
        Rules::default()
    }

    /// Returns a number that no earlier subject had.
    fn next_subject(&mut self) -> u32;
}

/// Returns a subject on a new empty directory.
pub fn subject<V: Mounted + 'static>(volume: &Rc<RefCell<V>>) -> Result<PosixSubject<'static>> {
    let name = format!("subject-{}", volume.borrow_mut().next_subject());
    let root = volume.borrow().root()?.join(&name);
    std::fs::create_dir(&root)?;
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755))?;
    let volume = Rc::clone(volume);
    let rules = volume.borrow().rules();
    let remount = move || {
        volume.borrow_mut().remount()?;
        Ok(volume.borrow().root()?.join(&name))
    };
    Ok(PosixSubject::new(root, Box::new(remount)).with_rules(rules))
}
