//! [`Meter`]: counts what calls cost: requests to the device, their bytes, and allocations.
//!
//! Requests of all threads count. Allocations are those of the calling thread, and are counted
//! because the allocator of this program is [`butternut_sys::allocations::CountingAllocator`].

use super::kept::Row;
use butternut_device::Device;
use butternut_sys::allocations::allocations_of;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums what the calls of one operation cost.
#[derive(Debug)]
pub(super) struct Meter {
    device: Arc<dyn Device>,
    row: Row,
}

impl Meter {
    /// Starts at zero. The device is the one that the calls use.
    pub(super) fn new(device: Arc<dyn Device>) -> Self {
        Self { device, row: Row::default() }
    }

    /// Forgets everything.
    pub(super) fn reset(&mut self) {
        self.row = Row::default();
    }

    /// Calls `call`, and counts it as one operation.
    pub(super) fn count<R>(&mut self, call: impl FnOnce() -> R) -> Option<R> {
        let before = self.device.counters().now();
        let (mut call, mut result) = (Some(call), None);
        let (allocations, ()) =
            allocations_of(|| counted(&mut || result = call.take().map(|call| call())));
        let now = self.device.counters().now();
        let row = &mut self.row;
        row.operations += 1;
        row.reads += now.reads - before.reads;
        row.read_bytes += now.read_bytes - before.read_bytes;
        row.writes += now.writes - before.writes;
        row.written_bytes += now.write_bytes - before.write_bytes;
        row.flushes += now.flushes - before.flushes;
        row.allocations += allocations;
        result
    }

    /// Returns the sums.
    pub(super) fn row(self) -> Row {
        Row { instructions: BTreeMap::new(), ..self.row }
    }
}

/// Callgrind counts the instructions of this function (see `instructions`).
#[inline(never)]
fn counted(call: &mut dyn FnMut()) {
    call();
}
