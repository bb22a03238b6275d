//! The kernel's log since a mark: what btrfs has logged while a test ran.

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The maximum length of a record of `/dev/kmsg`, in bytes.
const RECORD_BYTES_MAX: usize = 8192;

/// A position in the kernel's log.
#[derive(Debug)]
pub struct Mark {
    log: OwnedFd,
}

impl Mark {
    /// Returns the current end of the log.
    pub fn now() -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty())
            .context("/dev/kmsg: reading the kernel's log needs root")?;
        rustix::fs::seek(&log, SeekFrom::End(0)).context("/dev/kmsg")?;
        Ok(Self { log })
    }

    /// Returns the lines of btrfs since the mark that have warning level or worse and name one of
    /// `devices`.
    pub fn complaints(&self, devices: &[&str]) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let mut record = vec![0; RECORD_BYTES_MAX];
        loop {
            match rustix::io::read(&self.log, &mut record[..]) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(found),
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&record[..bytes]);
                    found.extend(complaint(&text, devices));
                }
                // Records were overwritten before they were read; the remaining ones are read.
                Err(Errno::PIPE | Errno::INTR) => {}
                Err(errno) => return Err(errno).context("/dev/kmsg"),
            }
        }
    }
}

/// Parses a record "priority,sequence,time,flags;text".
fn complaint(record: &str, devices: &[&str]) -> Option<String> {
    let (prefix, text) = record.split_once(';')?;
    let priority: u32 = prefix.split(',').next()?.parse().ok()?;
    let is_complaint = priority & 7 <= 4 && text.contains("BTRFS");
    let names_one = devices.is_empty() || devices.iter().any(|device| text.contains(device));
    (is_complaint && names_one).then(|| text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_about_the_device_are_kept_and_notes_are_not() {
        let warning = "4,100,5,-;BTRFS warning (device loop3): checksum verify failed\n";
        let note = "6,101,5,-;BTRFS info (device loop3): using crc32c\n";
        assert!(complaint(warning, &["loop3"]).is_some());
        assert!(complaint(warning, &["loop4"]).is_none());
        assert!(complaint(note, &["loop3"]).is_none());
    }
}
