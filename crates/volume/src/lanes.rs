//! Idle queue pairs: who reads or writes takes one, runs a batch on it, and puts it back.
//!
//! No lock is held while a batch runs; the list is locked for a push or a pop. There are at most
//! [`LANES_MAX`] queue pairs; a thread beyond that waits for one to come back.

use butternut_device::{Device, DeviceError, QueuePair, ReadInto, Request, WriteFrom};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Queue pairs that may exist at once.
const LANES_MAX: usize = 64;

/// Requests that a queue pair keeps in flight.
const DEPTH: usize = 128;

#[derive(Debug)]
pub(crate) struct Lanes {
    devices: Arc<[Arc<dyn Device>]>,
    idle: Mutex<Idle>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Idle {
    pairs: Vec<QueuePair>,
    /// Queue pairs that exist, idle or not.
    made: usize,
}

impl Lanes {
    pub(crate) fn new(devices: Arc<[Arc<dyn Device>]>) -> Self {
        Self { devices, idle: Mutex::default(), returned: Condvar::new() }
    }

    pub(crate) fn devices(&self) -> Arc<[Arc<dyn Device>]> {
        Arc::clone(&self.devices)
    }

    /// Whether these are its devices, and not those of another.
    pub(crate) fn is_over(&self, devices: &Arc<[Arc<dyn Device>]>) -> bool {
        Arc::ptr_eq(&self.devices, devices)
    }

    /// Runs a batch to its end, on this thread's time.
    pub(crate) fn run(&self, batch: &mut [ReadInto<'_>]) {
        self.run_looking(batch, &|_| {});
    }

    /// As [`Self::run`]; `look` may see reads that succeeded while others are on their way.
    pub(crate) fn run_looking(
        &self,
        batch: &mut [ReadInto<'_>],
        look: &(dyn Fn(&ReadInto<'_>) + Sync),
    ) {
        if batch.is_empty() {
            return;
        }
        let mut lane = Lane { lanes: self, pair: Some(self.take()) };
        if let Some(pair) = &mut lane.pair {
            pair.run_looking(batch, look);
        }
    }

    /// Runs a batch of writes to its end, and does once what there is to do meanwhile.
    pub(crate) fn run_writes(
        &self,
        batch: &mut [WriteFrom<'_>],
        meanwhile: Option<&mut dyn FnMut()>,
    ) {
        let mut lane = Lane { lanes: self, pair: Some(self.take()) };
        if let Some(pair) = &mut lane.pair {
            pair.run_writes_meanwhile(batch, meanwhile);
        }
    }

    /// Flushes the devices of these slots, all at once.
    pub(crate) fn flush(&self, slots: &[usize]) -> Vec<(usize, Result<(), DeviceError>)> {
        let mut lane = Lane { lanes: self, pair: Some(self.take()) };
        let Some(pair) = &mut lane.pair else { return Vec::new() };
        let mut done = Vec::with_capacity(slots.len());
        for slot in slots {
            let mut request = Request::flush(*slot, 0);
            // A full queue pair gives the request back, and has something to wait for.
            while let Err(back) = pair.submit(request) {
                request = back;
                pair.poll(1, None, &mut done);
            }
        }
        while pair.outstanding() > 0 {
            pair.poll(1, None, &mut done);
        }
        done.into_iter().map(|done| (done.device, done.result)).collect()
    }

    fn take(&self) -> QueuePair {
        let mut idle = self.lock();
        loop {
            if let Some(pair) = idle.pairs.pop() {
                return pair;
            }
            if idle.made < LANES_MAX {
                idle.made = idle.made.saturating_add(1);
                drop(idle);
                return QueuePair::new(Arc::clone(&self.devices), DEPTH);
            }
            idle = self.returned.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A queue pair in use; goes back when it is dropped, also by a panic.
struct Lane<'a> {
    lanes: &'a Lanes,
    pair: Option<QueuePair>,
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let mut idle = self.lanes.lock();
        match self.pair.take().filter(|_| !std::thread::panicking()) {
            Some(pair) => idle.pairs.push(pair),
            None => idle.made = idle.made.saturating_sub(1),
        }
        drop(idle);
        self.lanes.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_device::MemoryDevice;

    #[test]
    fn more_readers_than_lanes_all_get_their_bytes() {
        let image: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &image));
        let lanes = Lanes::new(Arc::from(vec![device]));
        std::thread::scope(|scope| {
            for reader in 0..LANES_MAX + 8 {
                let (lanes, image) = (&lanes, &image);
                scope.spawn(move || {
                    for turn in 0..20 {
                        let at = (reader * 4096 + turn * 8192) % (1 << 19);
                        let mut bytes = vec![0; 4096];
                        let mut batch = [ReadInto::new(0, at as u64, &mut bytes)];
                        lanes.run(&mut batch);
                        assert!(batch[0].result.is_ok());
                        assert_eq!(bytes, image[at..at + 4096]);
                    }
                });
            }
        });
        let idle = lanes.lock();
        assert!(idle.made <= LANES_MAX);
        assert_eq!(idle.made, idle.pairs.len(), "all came back");
    }
}
