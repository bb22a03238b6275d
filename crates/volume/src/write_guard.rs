//! [`WriteGuard`]: whether the devices may be written.
//!
//! The guard is checked before each slice of a batch of data or blocks
//! ([`crate::write_batch`]), before each request of a data queue, before the first copies of a
//! superblock and again before the others, and before each discard. Requests in flight are left to
//! the callers.
//!
//! Laws:
//! 1. Once another writer has changed a superblock (law 8 of [`crate::barrier`]), every write
//!    fails.
//! 2. Once writing has ended, every write fails.
//! 3. A mount of the kernel may hold the device for this process. It can end without a last commit,
//!    for example by a forced unmount, and then any program may use the device. So each check looks
//!    whether the mount still exists. The first one that finds it gone claims the device again and
//!    compares the superblocks. If the device cannot be claimed within [`CLAIM_WAIT`], or a
//!    superblock was changed, this write and all later ones fail. What still holds the device may
//!    be another program, or what the kernel has left of the mount itself.
//! 4. Every write that is refused fails with the cause, not only the first.

use crate::error::VolumeError;
use crate::volume::Volume;
use butternut_sys::lock::{Mutex, rank};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a write waits until the kernel, or another program, has released the device.
const CLAIM_WAIT: Duration = Duration::from_secs(30);

/// Whether the devices may be written.
#[derive(Debug, Default)]
pub(crate) struct WriteGuard {
    /// The first superblock of another writer that was found, if one was.
    foreign: OnceLock<ForeignSuper>,
    /// Why the devices could not be claimed after the end of the mount.
    unclaimed: OnceLock<Arc<VolumeError>>,
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

/// Why a write is refused.
#[derive(Clone, Debug)]
pub(crate) enum WriteRefused {
    Foreign(ForeignSuper),
    MountEnded(Arc<VolumeError>),
    Ended,
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

impl From<WriteRefused> for VolumeError {
    fn from(refused: WriteRefused) -> Self {
        match refused {
            WriteRefused::Foreign(found) => found.error(),
            WriteRefused::MountEnded(cause) => Self::MountEnded(cause),
            WriteRefused::Ended => Self::WritesEnded,
        }
    }
}

impl fmt::Debug for MountClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountClaim").field("is_claimed", &self.is_claimed).finish_non_exhaustive()
    }
}

impl Volume {
    /// Fails if no more writes may be submitted (laws 1 to 4), and then every later call fails.
    pub(crate) fn check_may_write(&self) -> Result<(), WriteRefused> {
        self.check_not_refused()?;
        match self.write_guard.mount.get() {
            Some(mount) if !mount.is_claimed.load(Ordering::Acquire) && !(mount.is_mounted)() => {
                self.claim_devices(mount)
            }
            _ => Ok(()),
        }
    }

    /// Fails if a check has failed before, or writing has ended.
    fn check_not_refused(&self) -> Result<(), WriteRefused> {
        let guard = &self.write_guard;
        if let Some(cause) = guard.unclaimed.get() {
            return Err(WriteRefused::MountEnded(Arc::clone(cause)));
        }
        if let Some(found) = guard.foreign.get() {
            return Err(WriteRefused::Foreign(found.clone()));
        }
        if guard.has_ended.load(Ordering::Acquire) {
            return Err(WriteRefused::Ended);
        }
        Ok(())
    }

    /// Claims the devices after the end of the mount that held one of them (law 3).
    fn claim_devices(&self, mount: &MountClaim) -> Result<(), WriteRefused> {
        let _alone = mount.claiming.lock();
        // Another thread may have decided it meanwhile.
        self.check_not_refused()?;
        if mount.is_claimed.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.claim_members() {
            Ok(()) => {
                mount.is_claimed.store(true, Ordering::Release);
                Ok(())
            }
            Err(cause) => {
                let cause = self.write_guard.unclaimed.get_or_init(|| Arc::new(cause));
                Err(WriteRefused::MountEnded(Arc::clone(cause)))
            }
        }
    }

    fn claim_members(&self) -> Result<(), VolumeError> {
        let mut were_released = Vec::new();
        for member in self.members.iter().filter(|member| !member.is_seed) {
            let claimed = member.device.claim(CLAIM_WAIT).map_err(|source| VolumeError::Device {
                device: member.device.name().to_owned(),
                offset: 0,
                bytes: 0,
                source,
            });
            if claimed? {
                were_released.push(member);
            }
        }
        self.check_unchanged_supers(&were_released)
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
