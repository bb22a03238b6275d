//! [`Mapped`]: a shared mapping of a file (`mmap(2)`). For tests of mapped I/O.
//!
//! 1. The bytes may change at any time: they are copied in and out, and no reference to them is
//!    handed out.
//! 2. Accessing a page behind the end of the file, or one without access rights, kills the process
//!    with a signal. System calls that get such a page as a buffer fail.

use rustix::mm::{
    MapFlags, MprotectFlags, MsyncFlags, ProtFlags, mmap, mmap_anonymous, mprotect, msync, munmap,
};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};

/// Mapped memory that other code may change. Dropping it unmaps it.
#[derive(Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to no thread, and is reached through raw pointers only (law 1).
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first bytes of a file that is open for reading and writing.
    pub fn shared(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is affected.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) };
        Ok(Self::of(start?, bytes))
    }

    /// Maps zeroed memory without a file.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is affected.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        Ok(Self::of(start?, bytes))
    }

    fn of(start: *mut std::ffi::c_void, bytes: usize) -> Self {
        Self { start: NonNull::new(start.cast()).expect("nothing is mapped at 0"), bytes }
    }

    /// Copies the bytes at offset `at` into `into`.
    pub fn get(&self, at: usize, into: &mut [u8]) {
        let from = self.part(at..at + into.len());
        // SAFETY: the part is mapped and readable, and is not `into`, which is borrowed.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies `bytes` to offset `at`.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        let to = self.part(at..at + bytes.len());
        // SAFETY: the part is mapped and writable, and no reference to it exists (law 1).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Writes changed pages back to the file (`msync(2)` with `MS_SYNC`).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the memory is mapped.
        Ok(unsafe { msync(self.start.as_ptr().cast(), self.bytes, MsyncFlags::SYNC) }?)
    }

    /// Removes all access rights from whole pages.
    pub fn protect_none(&self, range: Range<usize>) -> io::Result<()> {
        let (start, bytes) = (self.part(range.clone()).cast(), range.len());
        // SAFETY: the part is mapped, and no reference to it exists (law 1).
        Ok(unsafe { mprotect(start, bytes, MprotectFlags::empty()) }?)
    }

    /// Reads from a file directly into this memory.
    pub fn read_from(&self, file: impl AsFd, at: u64, range: Range<usize>) -> io::Result<usize> {
        let (start, bytes) = (self.part(range.clone()), range.len());
        let (fd, at) = (file.as_fd().as_raw_fd(), i64::try_from(at).map_err(io::Error::other)?);
        // SAFETY: the part is mapped, and no reference to it exists (law 1).
        result_of(unsafe { libc::pread(fd, start.cast(), bytes, at) })
    }

    /// Writes to a file directly from this memory.
    pub fn write_to(&self, file: impl AsFd, at: u64, range: Range<usize>) -> io::Result<usize> {
        let (start, bytes) = (self.part(range.clone()), range.len());
        let (fd, at) = (file.as_fd().as_raw_fd(), i64::try_from(at).map_err(io::Error::other)?);
        // SAFETY: the part is mapped; the kernel tolerates concurrent changes.
        result_of(unsafe { libc::pwrite(fd, start.cast(), bytes, at) })
    }

    fn part(&self, range: Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} is mapped");
        // SAFETY: the offset is inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(range.start) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by this type, and no reference to it exists (law 1).
        unsafe { munmap(self.start.as_ptr().cast(), self.bytes) }.unwrap_or_default();
    }
}

fn result_of(result: isize) -> io::Result<usize> {
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
    fn system_calls_on_pages_without_access_rights_fail() {
        let file = tempfile::tempfile().unwrap();
        let memory = Mapped::anonymous(8192).unwrap();
        memory.protect_none(4096..8192).unwrap();
        assert!(memory.write_to(&file, 0, 4096..8192).is_err());
        assert_eq!(memory.write_to(&file, 0, 0..4096).unwrap(), 4096);
    }
}
