//! A pool of queue pairs. A thread that reads or writes takes one, runs a batch on it, and returns
//! it.
//!
//! No lock is held while a batch runs; the list is locked for a push or a pop only. There are at
//! most [`QUEUES_MAX`] queue pairs. When all are in use, a thread waits for one.

use butternut_device::{Device, DeviceError, QueuePair, ReadInto, Request, WriteFrom};
use butternut_sys::lock::{Condvar, Mutex, MutexGuard, rank};
use std::sync::Arc;

/// Maximum number of queue pairs.
const QUEUES_MAX: usize = 64;

/// Requests that one queue pair keeps in flight.
const DEPTH: usize = 128;

#[derive(Debug)]
pub(crate) struct QueuePool {
    devices: Arc<[Arc<dyn Device>]>,
    idle: Mutex<Idle, rank::QueuePool>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct Idle {
    pairs: Vec<QueuePair>,
    /// Number of queue pairs, idle or in use.
    made: usize,
}

impl QueuePool {
    pub(crate) fn new(devices: Arc<[Arc<dyn Device>]>) -> Self {
        Self { devices, idle: Mutex::default(), returned: Condvar::new() }
    }

    pub(crate) fn devices(&self) -> Arc<[Arc<dyn Device>]> {
        Arc::clone(&self.devices)
    }

    /// Returns whether these are the pool's devices.
    pub(crate) fn is_over(&self, devices: &Arc<[Arc<dyn Device>]>) -> bool {
        Arc::ptr_eq(&self.devices, devices)
    }

    /// Runs a batch of reads and waits for all of them.
    pub(crate) fn run(&self, batch: &mut [ReadInto<'_>]) {
        self.run_inspecting(batch, &|_| {});
    }

    /// Runs a batch as [`Self::run`] does, and calls `look` on successful reads while others are
    /// still in flight.
    pub(crate) fn run_inspecting(
        &self,
        batch: &mut [ReadInto<'_>],
        look: &(dyn Fn(&ReadInto<'_>) + Sync),
    ) {
        if batch.is_empty() {
            return;
        }
        let mut queue = PooledQueue { pool: self, pair: Some(self.take()) };
        if let Some(pair) = &mut queue.pair {
            pair.run_inspecting(batch, look);
        }
    }

    /// Runs a batch of writes and waits for all of them. Calls `meanwhile` once, if possible while
    /// they are in flight.
    pub(crate) fn run_writes(
        &self,
        batch: &mut [WriteFrom<'_>],
        meanwhile: Option<&mut dyn FnMut()>,
    ) {
        let mut queue = PooledQueue { pool: self, pair: Some(self.take()) };
        if let Some(pair) = &mut queue.pair {
            pair.run_writes_meanwhile(batch, meanwhile);
        }
    }

    /// Flushes the devices of these slots, all at the same time. One device alone is flushed by
    /// this thread: a ring would hand the flush to another.
    pub(crate) fn flush(&self, slots: &[usize]) -> Vec<(usize, Result<(), DeviceError>)> {
        if let [slot] = slots
            && let Some(device) = self.devices.get(*slot)
        {
            return vec![(*slot, device.flush())];
        }
        let mut queue = PooledQueue { pool: self, pair: Some(self.take()) };
        let Some(pair) = &mut queue.pair else { return Vec::new() };
        let mut done = Vec::with_capacity(slots.len());
        for slot in slots {
            let mut request = Request::flush(*slot, 0);
            // A full queue pair returns the request; polling then frees a slot.
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
            if idle.made < QUEUES_MAX {
                idle.made = idle.made.saturating_add(1);
                drop(idle);
                return QueuePair::new(Arc::clone(&self.devices), DEPTH);
            }
            idle = self.returned.wait(idle);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock()
    }
}

/// A queue pair in use. Dropping it returns it to the pool, also during a panic.
struct PooledQueue<'a> {
    pool: &'a QueuePool,
    pair: Option<QueuePair>,
}

impl Drop for PooledQueue<'_> {
    fn drop(&mut self) {
        let mut idle = self.pool.lock();
        match self.pair.take().filter(|_| !std::thread::panicking()) {
            Some(pair) => idle.pairs.push(pair),
            None => idle.made = idle.made.saturating_sub(1),
        }
        drop(idle);
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butternut_device::MemoryDevice;

    #[test]
    fn more_readers_than_queue_pairs_all_get_their_bytes() {
        let image: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::copy_of("memory", &image));
        let pool = QueuePool::new(Arc::from(vec![device]));
        std::thread::scope(|scope| {
            for reader in 0..QUEUES_MAX + 8 {
                let (pool, image) = (&pool, &image);
                scope.spawn(move || {
                    for round in 0..20 {
                        let at = (reader * 4096 + round * 8192) % (1 << 19);
                        let mut bytes = vec![0; 4096];
                        let mut batch = [ReadInto::new(0, at as u64, &mut bytes)];
                        pool.run(&mut batch);
                        assert!(batch[0].result.is_ok());
                        assert_eq!(bytes, image[at..at + 4096]);
                    }
                });
            }
        });
        let idle = pool.lock();
        assert!(idle.made <= QUEUES_MAX);
        assert_eq!(idle.made, idle.pairs.len(), "all queue pairs were returned");
    }
}
