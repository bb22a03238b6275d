//! Reads a file with many direct reads in flight, and waits for them in an event loop, together
//! with whatever else the loop serves: `cargo run --example poll_queue -- IMAGE PATH`. Prints the
//! number of bytes and their CRC-32C.
//!
//! The loop is one of `mio`; other pollers (`tokio`'s `AsyncFd`, `poll`, `epoll`) take the same
//! descriptor.

use butternut::format::checksum::ChecksumKind;
use butternut::queue::{Completion, IoFlags, QueueOptions};
use butternut::{DevicePath, Filesystem, MountOptions};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;

const BLOCK: usize = 64 << 10;
const QUEUE: Token = Token(0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(std::env::args_os().skip(1), &mut io::stdout())
}

pub(crate) fn run(
    mut arguments: impl Iterator<Item = OsString>,
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    let (Some(image), Some(path)) = (arguments.next(), arguments.next()) else {
        return Err("usage: poll_queue IMAGE PATH".into());
    };
    let filesystem = Filesystem::open(&[DevicePath::from(image)], &MountOptions::default())?;
    let file = filesystem.open_path(&path.into_vec())?;
    let mut queue = filesystem.queue(&QueueOptions::default().has_event(true))?;

    let mut poll = Poll::new()?;
    let descriptor = queue.event().ok_or("the queue has no event")?.as_raw_fd();
    poll.registry().register(&mut SourceFd(&descriptor), QUEUE, Interest::READABLE)?;

    let mut bytes = vec![0; usize::try_from(file.len())?];
    let mut offsets = (0..bytes.len()).step_by(BLOCK).peekable();
    let mut events = Events::with_capacity(8);
    let mut done: Vec<Completion> = Vec::new();
    while offsets.peek().is_some() || queue.outstanding() > 0 {
        // As many reads as there are buffers; each is tagged with its offset.
        while let Some(buffer) = offsets.peek().and_then(|_| queue.buffer(BLOCK)) {
            let offset = offsets.next().unwrap_or_default() as u64;
            queue
                .read(&file, offset, buffer, IoFlags::DIRECT, offset)
                .map_err(|refused| refused.error)?;
        }
        queue.submit();
        match poll.poll(&mut events, None) {
            // The kernel also interrupts the wait to complete a request.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            waited => waited?,
        }
        queue.reap(0, None, &mut done);
        for Completion { tag, buffer, result } in done.drain(..) {
            let (start, read) = (usize::try_from(tag)?, result?);
            bytes[start..start + read].copy_from_slice(&buffer[..read]);
        }
    }
    let digest = ChecksumKind::Crc32c.compute(&bytes);
    let digest: Vec<String> = digest.iter().take(4).rev().map(|b| format!("{b:02x}")).collect();
    writeln!(out, "{} {}", bytes.len(), digest.concat())?;
    Ok(())
}
