//! Makes a volume over another one, and checks every crash: the device holds the old volume, the
//! new one or none, and never a mixture.

use butternut_device::{CrashOptions, Crashes, Device, RecordingDevice};
use butternut_mkfs::MkfsOptions;
use butternut_sim::volume::{check_crashed, fresh, is_super_block};
use butternut_volume::{OpenOptions, Volume};
use std::sync::Arc;

const VOLUME_BYTES: u64 = 160 << 20;

#[test]
fn making_a_volume_over_another_leaves_one_of_them_or_none() {
    let old = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
    let old_id = fsid(&old).expect("a fresh volume opens");
    let device = RecordingDevice::new(old);
    let options = MkfsOptions { overwrite: true, node_bytes: Some(4096), ..MkfsOptions::default() };
    let new_id = butternut_mkfs::make(&device, &options).unwrap().fsid.0;
    let recording = device.recording();
    let crashes = CrashOptions { seed: 1, seeded_per_gap: 60, pivotal: is_super_block };
    let mut seen = [0; 3];
    for crash in Crashes::new(recording.clone(), crashes) {
        let crash = crash.unwrap();
        let image: Arc<dyn Device> = Arc::new(crash.image(&recording).unwrap());
        let which = match fsid(&image) {
            None => 0,
            Some(id) if id == old_id => 1,
            Some(id) if id == new_id => 2,
            Some(id) => panic!("{crash:?}: fsid {id:?}"),
        };
        seen[which] += 1;
        if which > 0 {
            check_crashed(&image).unwrap_or_else(|error| panic!("{crash:?}: {error:#}"));
        }
    }
    assert!(seen.iter().all(|count| *count > 4), "none, old, new: {seen:?}");
}

fn fsid(device: &Arc<dyn Device>) -> Option<[u8; 16]> {
    let volume = Volume::open(vec![Arc::clone(device)], OpenOptions::default()).ok()?;
    Some(volume.super_block().fsid())
}
