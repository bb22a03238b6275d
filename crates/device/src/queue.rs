//! [`QueuePair`]: many requests in flight on all devices of a volume.

use crate::device::Device;
use crate::error::DeviceError;
use crate::request::{Completion, ReadInto, Request, RequestKind, WriteFrom};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Whether to ask the kernel for an `io_uring`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingUse {
    /// Use one if the kernel gives one.
    #[default]
    Try,
    /// Use threads.
    Never,
}

#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// The most requests submitted and not yet polled.
    pub depth: usize,
    pub ring: RingUse,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { depth: 128, ring: RingUse::Try }
    }
}

/// How requests reach the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Ring,
    Threads,
}

#[derive(Debug)]
pub struct QueuePair {
    devices: Arc<[Arc<dyn Device>]>,
    depth: usize,
    ready: VecDeque<Completion>,
}

impl QueuePair {
    pub fn new(devices: Arc<[Arc<dyn Device>]>, depth: usize) -> QueuePair {
        QueuePair::with_options(devices, &QueueOptions { depth, ..QueueOptions::default() })
    }

    pub fn with_options(devices: Arc<[Arc<dyn Device>]>, options: &QueueOptions) -> QueuePair {
        let depth = options.depth.max(1);
        QueuePair { devices, depth, ready: VecDeque::with_capacity(depth) }
    }

    pub fn devices(&self) -> &Arc<[Arc<dyn Device>]> {
        &self.devices
    }

    pub fn backend(&self) -> Backend {
        Backend::Threads
    }

    /// Takes the request, or gives it back when `depth` requests are out already.
    pub fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        if self.ready.len() >= self.depth {
            return Err(request);
        }
        let result = match self.devices.get(request.device) {
            None => Err(DeviceError::NoDevice { index: request.device }),
            Some(device) => execute(&**device, &mut request),
        };
        self.ready.push_back(request.complete(result));
        Ok(())
    }

    /// Waits until `min` completions are there (or all that are out, or the timeout), and adds
    /// everything that is complete to `out`. Says how many.
    pub fn poll(
        &mut self,
        min: usize,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> usize {
        let _ = (min, timeout);
        let count = self.ready.len();
        out.extend(self.ready.drain(..));
        count
    }

    /// Runs the batch to the end. Each request has its own result.
    pub fn run(&mut self, batch: &mut [ReadInto<'_>]) {
        for read in batch {
            read.result = match self.devices.get(read.device) {
                None => Err(DeviceError::NoDevice { index: read.device }),
                Some(device) => device.read_at(read.offset, read.buf),
            };
        }
    }

    /// The same for writes.
    pub fn run_writes(&mut self, batch: &mut [WriteFrom<'_>]) {
        for write in batch {
            write.result = match self.devices.get(write.device) {
                None => Err(DeviceError::NoDevice { index: write.device }),
                Some(device) => device.write_at(write.offset, write.buf),
            };
        }
    }
}

fn execute(device: &dyn Device, request: &mut Request) -> Result<(), DeviceError> {
    match request.kind {
        RequestKind::Read => device.read_at(request.offset, &mut request.buffer),
        RequestKind::Write => device.write_at(request.offset, &request.buffer),
        RequestKind::Flush => device.flush(),
        RequestKind::Discard => device.discard(request.offset, request.bytes),
    }
}
