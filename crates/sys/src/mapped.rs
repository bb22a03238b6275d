//! [`Mapped`]: a file's own pages as memory, shared with the kernel and everyone else who maps it.
//! For tests of what must agree with it.
//!
//! 1. The bytes may change at any time: they are copied in and out, and no reference to them is
//!    given out.
//! 2. Who touches pages behind the end of the file, or forbidden ones, dies of it; calls that are
//!    given them as a buffer fail.

use rustix::mm::{
    MapFlags, MprotectFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, mprotect, msync, munmap,
};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

/// Memory that others may change. Dropping it unmaps it.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread, and is reached through raw pointers only (law 1).
unsafe impl Send for Mapped {}

impl Mapped {
    /// The first bytes of a file that is open for reading and writing.
    pub fn shared(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped already is touched.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
        Ok(Self::of(start?, bytes))
    }

    /// Zeroes that belong to no file.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so nothing that is mapped already is touched.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        Ok(Self::of(start?, bytes))
    }

    fn of(start: *mut std::ffi::c_void, bytes: usize) -> Self {
        Self { start: NonNull::new(start.cast()).expect("nothing is mapped at 0"), bytes }
    }

    /// Copies what is there at `at` now.
    pub fn get(&self, at: usize, into: &mut [u8]) {
        let from = self.part(at..at + into.len());
        // SAFETY: the part is mapped and readable, and is not `into`, which is borrowed.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Changes what is there at `at`.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let to = self.part(at..at + bytes.len());
        // SAFETY: the part is mapped and writable, and nobody has a reference to it (law 1).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Brings down what was changed.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the memory is mapped.
        Ok(unsafe { msync(self.start.as_ptr().cast(), self.bytes, MsyncFlags::SYNC) }?)
    }

    /// Nobody may touch whole pages of it any more.
    pub fn forbid(&self, range: Range<usize>) -> io::Result<()> {
        let (start, bytes) = (self.part(range.clone()).cast(), range.len());
        // SAFETY: the part is mapped, and nobody has a reference to it (law 1).
        Ok(unsafe { mprotect(start, bytes, MprotectFlags::empty()) }?)
    }

    /// Reads from a file into this memory itself.
    pub fn read_from(&self, file: impl AsFd, at: u64, range: Range<usize>) -> io::Result<usize> {
        let (start, bytes) = (self.part(range.clone()), range.len());
        let (fd, at) = (file.as_fd().as_raw_fd(), i64::try_from(at).map_err(io::Error::other)?);
        // SAFETY: the part is mapped, and nobody has a reference to it (law 1).
        told(unsafe { libc::pread(fd, start.cast(), bytes, at) })
    }

    /// Writes to a file out of this memory itself.
    pub fn write_to(&self, file: impl AsFd, at: u64, range: Range<usize>) -> io::Result<usize> {
        let (start, bytes) = (self.part(range.clone()), range.len());
        let (fd, at) = (file.as_fd().as_raw_fd(), i64::try_from(at).map_err(io::Error::other)?);
        // SAFETY: the part is mapped; the kernel copes with what changes meanwhile.
        told(unsafe { libc::pwrite(fd, start.cast(), bytes, at) })
    }

    fn part(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is mapped");
        // SAFETY: the offset is inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(range.start) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped here, and nobody has a reference to it (law 1).
        unsafe { munmap(self.start.as_ptr().cast(), self.bytes) }.unwrap_or_default();
    }
}

fn told(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_mapping_and_its_file_hold_the_same_bytes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mapped = Mapped::shared(&file, 8192).unwrap();
        mapped.put(4000, b"mapped");
        mapped.sync().unwrap();
        let mut seen = [0; 6];
        file.read_exact_at(&mut seen, 4000).unwrap();
        assert_eq!(&seen, b"mapped");
        file.write_all_at(b"file", 0).unwrap();
        assert_eq!(mapped.read_from(&file, 0, 100..104).unwrap(), 4);
        mapped.get(100, &mut seen[..4]);
        assert_eq!(&seen[..4], b"file");
        assert_eq!(mapped.write_to(&file, 200, 4000..4006).unwrap(), 6);
        mapped.get(200, &mut seen);
        assert_eq!(&seen, b"mapped");
    }

    #[test]
    fn calls_that_are_given_forbidden_pages_fail() {
        let file = tempfile::tempfile().unwrap();
        let memory = Mapped::anonymous(8192).unwrap();
        memory.forbid(4096..8192).unwrap();
        assert!(memory.write_to(&file, 0, 4096..8192).is_err());
        assert_eq!(memory.write_to(&file, 0, 0..4096).unwrap(), 4096);
    }
}
