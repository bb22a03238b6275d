//! Subjects of the model on a mounted volume: each is an empty directory of its own, so that trying
//! many scripts needs no new volume.

use anyhow::Result;
use butternut_sim::posix::PosixSubject;
use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;

/// A volume that is mounted somewhere.
pub trait Mounted {
    fn root(&self) -> Result<&Path>;

    /// Down and up again.
    fn remount(&mut self) -> Result<()>;

    /// A number that no subject had before.
    fn next_subject(&mut self) -> u32;
}

/// A subject that is an empty directory.
pub fn subject<V: Mounted + 'static>(volume: &Rc<RefCell<V>>) -> Result<PosixSubject<'static>> {
    let name = format!("subject-{}", volume.borrow_mut().next_subject());
    let root = volume.borrow().root()?.join(&name);
    std::fs::create_dir(&root)?;
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755))?;
    let volume = Rc::clone(volume);
    let remount = move || {
        volume.borrow_mut().remount()?;
        Ok(volume.borrow().root()?.join(&name))
    };
    Ok(PosixSubject::new(root, Box::new(remount)))
}
