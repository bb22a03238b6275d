//! Prevents other programs from inheriting the file descriptors of this process.

use crate::errno::Errno;

/// The first descriptor behind the three standard ones.
const FIRST: libc::c_uint = 3;

/// Sets the close-on-exec flag of every descriptor except the standard three.
///
/// # Errors
/// The kernel has no `close_range` with this flag (before Linux 5.11), and `/proc` is not mounted.
pub fn close_on_exec() -> Result<(), Errno> {
    let flags = libc::c_long::from(libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the call takes three integers and closes nothing: it only sets a flag.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flags) };
    if answer == 0 { Ok(()) } else { set_flags_one_by_one() }
}

fn set_flags_one_by_one() -> Result<(), Errno> {
    let refused = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    for entry in std::fs::read_dir("/proc/self/fd").map_err(refused)?.flatten() {
        let name = entry.file_name();
        let Some(number) = name.to_str().and_then(|text| text.parse::<libc::c_int>().ok()) else {
            continue;
        };
        if number.unsigned_abs() >= FIRST {
            // SAFETY: sets a flag of a descriptor; the call fails if it was closed meanwhile.
            unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_started_program_does_not_inherit_descriptors() {
        for way in [close_on_exec, set_flags_one_by_one] {
            let file = tempfile::tempfile().unwrap();
            rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let has_it = || {
                std::process::Command::new("test").args(["-e", &path]).status().unwrap().success()
            };
            assert!(has_it());
            way().unwrap();
            assert!(!has_it());
        }
    }
}
