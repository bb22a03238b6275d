//! How a mount behaves, as the door needs it; what users type is the command line's matter.

use std::path::PathBuf;

use butternut::FileId;

/// What the kernel keeps in memory of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// What is read, and what is written until the kernel sends it, which may be long after the
    /// write returned: a write for which there is no space is refused then (decision 0026).
    WriteBack,
    /// What is read. A write returns when the library has it, so it is refused where there is no
    /// space. A file opened with `O_DIRECT` may be written by many at once.
    #[default]
    WriteThrough,
    /// Nothing, and the library neither.
    Nothing,
}

/// The options of one mount.
#[expect(clippy::struct_excessive_bools, reason = "each is a mount option that is on or off")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Shown as the source of the mount.
    pub source: String,
    /// The filesystem is open for writing, and the mount is to be.
    pub is_writable: bool,
    /// Every write is brought down before it returns.
    pub is_synchronous: bool,
    /// Users other than the one who mounts may look. Permissions are then always checked.
    pub allow_other: bool,
    /// The kernel checks modes and ACLs even for the one who mounts.
    pub default_permissions: bool,
    /// Device nodes work.
    pub devices: bool,
    /// Set-user-id bits work.
    pub set_user_id: bool,
    /// Programs may be run.
    pub execute: bool,
    /// Threads that may write file data at the same time; at least 1. Four more answer the other
    /// requests meanwhile.
    pub threads: usize,
    pub caching: Caching,
    /// Where root mounts: the top directory of the volume, and the path from there to the
    /// directory that is mounted. The volume can then be mounted at other places, too.
    pub whole: Option<(FileId, PathBuf)>,
    /// All threads wait for requests, and the kernel wakes whichever it likes.
    pub all_wait: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "butternut".to_owned(),
            is_writable: false,
            is_synchronous: false,
            allow_other: false,
            default_permissions: false,
            devices: false,
            set_user_id: false,
            execute: true,
            threads: 2,
            caching: Caching::default(),
            whole: None,
            all_wait: false,
        }
    }
}

impl Options {
    /// Whether the kernel checks modes, and with them POSIX ACLs, before it asks us.
    ///
    /// Without it, whoever may reach the mount sees everything, and changes it where that is
    /// possible. That is right for the owner of an image, who could do so with its bytes anyway,
    /// and for nobody else: `allow_other` implies it.
    pub fn permissions(&self) -> bool {
        self.default_permissions || self.allow_other
    }
}
