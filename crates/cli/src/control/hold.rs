//! A commit that the process of a mount keeps on the devices while another program reads it from
//! them.
//!
//! ```text
//! process: the line of the response, with the devices
//! client:  'C', when it has read everything
//! process: 'K', if the commit was kept until then
//! ```
//!
//! Laws:
//!
//! 1. The commit is kept until the client closes the connection or has its answer, or the volume is
//!    released. Without the answer the client knows nothing of what it has read.
//! 2. What later commits free is no free space meanwhile.
//! 3. The client opens the devices by their paths, with its own permissions. So it opens those of
//!    its own mounts only: root does not open what another user names.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use butternut::Filesystem;
use butternut::server::FilesystemExt;
use serde::{Deserialize, Serialize};

pub(crate) use super::held_device::HeldDevice;
use super::stream::Connection;
use super::{Response, line_of, time_left};
use crate::failure::chain_with_hint;

/// The client asks whether the commit was kept, and the answer that it was.
const CONFIRM: u8 = b'C';
const KEPT: u8 = b'K';

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldVolume {
    pub(crate) generation: u64,
    pub(crate) devices: Vec<HeldDevice>,
}

/// Holds a commit for a client, in the process of the mount.
///
/// # Errors
/// As a write to the connection; the client or the volume has ended.
pub(super) fn serve(
    filesystem: &Filesystem,
    devices: &[HeldDevice],
    connection: Connection<'_>,
) -> io::Result<()> {
    let held = match filesystem.hold_last_commit() {
        Ok(held) => held,
        Err(error) => {
            let response = Response::Error(chain_with_hint(&error));
            return connection.send_all(&line_of(&response)?);
        }
    };
    let volume = HeldVolume { generation: held.generation(), devices: devices.to_vec() };
    let response = Response::Ok(serde_json::to_value(volume)?);
    connection.send_all(&line_of(&response)?)?;
    let mut request = [0];
    connection.read_exact(&mut request)?;
    connection.require_mounted()?;
    if request[0] == CONFIRM { connection.send_all(&[KEPT]) } else { Ok(()) }
}

/// The connection of a client for which a commit is held.
#[derive(Debug)]
pub(crate) struct Hold(pub(super) UnixStream);

impl Hold {
    /// Ends the hold. Returns whether the commit was kept until now.
    pub(crate) fn end(self, until: Instant) -> bool {
        self.confirm(until).unwrap_or(false)
    }

    fn confirm(mut self, until: Instant) -> io::Result<bool> {
        self.0.set_read_timeout(Some(time_left(until)?))?;
        self.0.set_write_timeout(Some(time_left(until)?))?;
        self.0.write_all(&[CONFIRM])?;
        let mut answer = [0];
        self.0.read_exact(&mut answer)?;
        Ok(answer[0] == KEPT)
    }
}
