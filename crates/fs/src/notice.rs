//! [`Notice`]: a message for the administrator, and the messages that an open makes. Those of later
//! failures are made in `failures`.

use butternut_volume::Volume;

/// A message for the administrator of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice(pub(crate) String);

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the notices of a volume that was opened. `log_failure` is why its log was not replayed.
pub(crate) fn notices(volume: &Volume, log_failure: Option<&str>) -> Vec<Notice> {
    let mut notices = Vec::new();
    if let Some(why) = log_failure {
        notices.push(Notice(format!(
            "the volume was not unmounted cleanly, and its log tree cannot be replayed: {why} \
             (shown is the last commit, without what was synced after it)"
        )));
    }
    for device in volume.devices() {
        if device.is_missing() {
            notices.push(Notice(format!("device {} is missing", device.devid)));
        } else if device.is_stale {
            let text = format!("device {} is older than the others", device.devid);
            notices.push(Notice(text));
        }
        let (writes, flushes) = (device.errors.write_errors, device.errors.flush_errors);
        if writes > 0 || flushes > 0 {
            notices.push(Notice(format!(
                "device {} has {writes} failed writes and {flushes} failed flushes on record: \
                 its copies may be old and are read last (scrub the volume, then reset the counts \
                 with `btrfs device stats -z`)",
                device.devid
            )));
        }
    }
    notices
}
