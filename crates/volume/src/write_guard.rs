//! [`WriteGuard`]: whether the devices may be written.
//!
//! Every write of data, blocks and superblocks and every discard checks the guard before it is
//! submitted. Requests in flight are left to the callers.
//!
//! Laws:
//! 1. Once another writer has changed a superblock (law 8 of [`crate::barrier`]), every write
//!    fails.
//! 2. Once writing has ended, every write fails.
//! 3. A mount of the kernel may hold the device for this process. It can end without a last commit,
//!    for example by a forced unmount, and then any program may use the device. So each write looks
//!    whether the mount still exists. The first one that finds it gone claims the device again and
//!    compares the superblocks. If another program holds the device, or has changed a superblock,
//!    this write and all later ones fail.

use crate::error::VolumeError;
use crate::volume::Volume;
use butternut_sys::lock::{Mutex, rank};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a write waits until the kernel, or another program, has released the device.
const CLAIM_WAIT: Duration = Duration::from_secs(30);

/// Whether the devices may be written.
#[derive(Debug, Default)]
pub(crate) struct WriteGuard {
    /// The first superblock of another writer that was found, if one was.
    foreign: OnceLock<ForeignSuper>,
    has_ended: AtomicBool,
    mount: OnceLock<MountClaim>,
}

/// A superblock of another writer.
#[derive(Clone, Debug)]
pub(crate) struct ForeignSuper {
    pub(crate) device: String,
    pub(crate) have: String,
    pub(crate) want: String,
}

/// The kernel's mount that holds a device for this process (law 3).
struct MountClaim {
    is_mounted: Box<dyn Fn() -> bool + Send + Sync>,
    /// The process has claimed the device itself.
    is_claimed: AtomicBool,
    /// Locked by the thread that claims the device.
    claiming: Mutex<(), rank::DeviceClaim>,
}

impl WriteGuard {
    /// Keeps the first superblock that was found, and returns the error to report.
    pub(crate) fn record(&self, found: ForeignSuper) -> VolumeError {
        self.foreign.get_or_init(|| found).error()
    }
}

impl ForeignSuper {
    fn error(&self) -> VolumeError {
        let Self { device, have, want } = self.clone();
        VolumeError::ForeignSuper { device, have, want }
    }
}

impl fmt::Debug for MountClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountClaim").field("is_claimed", &self.is_claimed).finish_non_exhaustive()
    }
}

impl Volume {
    /// Fails if no more writes may be submitted (laws 1 to 3).
    pub(crate) fn check_may_write(&self) -> Result<(), VolumeError> {
        let guard = &self.write_guard;
        if guard.has_ended.load(Ordering::Acquire) {
            return Err(VolumeError::WritesEnded);
        }
        if let Some(found) = guard.foreign.get() {
            return Err(found.error());
        }
        match guard.mount.get() {
            Some(mount) if !mount.is_claimed.load(Ordering::Acquire) && !(mount.is_mounted)() => {
                self.claim_devices(mount)
            }
            _ => Ok(()),
        }
    }

    /// Claims the devices after the end of the mount that held one of them (law 3).
    fn claim_devices(&self, mount: &MountClaim) -> Result<(), VolumeError> {
        let _alone = mount.claiming.lock();
        // Another thread may have decided it meanwhile.
        if mount.is_claimed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.write_guard.has_ended.load(Ordering::Acquire) {
            return Err(VolumeError::WritesEnded);
        }
        match self.claim_members() {
            Ok(()) => {
                mount.is_claimed.store(true, Ordering::Release);
                Ok(())
            }
            Err(cause) => {
                self.end_writes();
                Err(VolumeError::MountEnded(Box::new(cause)))
            }
        }
    }

    fn claim_members(&self) -> Result<(), VolumeError> {
        for member in self.members.iter().filter(|member| !member.is_seed) {
            member.device.claim(CLAIM_WAIT).map_err(|source| VolumeError::Device {
                device: member.device.name().to_owned(),
                offset: 0,
                bytes: 0,
                source,
            })?;
        }
        self.check_unchanged_supers()
    }

    /// Sets what tells whether the kernel's mount of a device still exists (law 3). It is called
    /// before each write, by any thread, with locks held. Only the first call has an effect.
    pub fn set_mount_watch(&self, is_mounted: Box<dyn Fn() -> bool + Send + Sync>) {
        let (is_claimed, claiming) = (AtomicBool::new(false), Mutex::new(()));
        self.write_guard.mount.get_or_init(|| MountClaim { is_mounted, is_claimed, claiming });
    }

    /// Refuses all later writes and discards with [`VolumeError::WritesEnded`] (law 2).
    pub fn end_writes(&self) {
        self.write_guard.has_ended.store(true, Ordering::Release);
    }
}
