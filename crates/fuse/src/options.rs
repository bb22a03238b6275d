//! How a mount behaves, as the door needs it; what users type is the command line's matter.

use fuser::{Config, MountOption, SessionACL};

use crate::requests::READ_BYTES_MAX;

/// The options of one mount.
#[expect(clippy::struct_excessive_bools, reason = "each is a mount option that is on or off")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Shown as the source of the mount.
    pub source: String,
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
    /// Threads that answer requests; at least 1.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            source: "butternut".to_owned(),
            allow_other: false,
            default_permissions: false,
            devices: false,
            set_user_id: false,
            execute: true,
            threads: 2,
        }
    }
}

impl Options {
    /// Whether the kernel checks modes, and with them POSIX ACLs, before it asks us.
    ///
    /// Without it, whoever may reach the mount sees everything. That is right for the owner of an
    /// image, who could read its bytes anyway, and for nobody else: `allow_other` implies it.
    pub fn permissions(&self) -> bool {
        self.default_permissions || self.allow_other
    }

    pub(crate) fn config(&self) -> Config {
        let mut options = vec![
            MountOption::RO,
            MountOption::NoAtime,
            MountOption::FSName(self.source.clone()),
            // Spelled as an option of the kernel, which the library itself would drop as root.
            MountOption::CUSTOM("subtype=butternut".to_owned()),
            MountOption::CUSTOM(format!("max_read={READ_BYTES_MAX}")),
        ];
        let mut choose = |yes: bool, on: MountOption, off: MountOption| {
            options.push(if yes { on } else { off });
        };
        choose(self.devices, MountOption::Dev, MountOption::NoDev);
        choose(self.set_user_id, MountOption::Suid, MountOption::NoSuid);
        choose(self.execute, MountOption::Exec, MountOption::NoExec);
        if self.permissions() {
            options.push(MountOption::DefaultPermissions);
        }
        let mut config = Config::default();
        config.mount_options = options;
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = true;
        config
    }
}
