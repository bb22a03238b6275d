//! Makes `io_uring` fail for one thread: as the seccomp filter of a container does, as a kernel
//! without memory does, or as one does that has reached its limit of threads. For tests.

use crate::errno::Errno;

/// Makes every later `io_uring` system call of this thread, and of threads that it starts, fail
/// with EPERM. This cannot be undone.
///
/// # Errors
/// The error of `prctl(2)`.
pub fn forbid_rings_on_this_thread() -> Result<(), Errno> {
    fail_rings_on_this_thread(libc::EPERM)
}

/// Makes every later `io_uring` system call of this thread, and of threads that it starts, fail
/// with EAGAIN, as if the kernel had no memory for requests. This cannot be undone.
///
/// # Errors
/// The error of `prctl(2)`.
pub fn starve_rings_on_this_thread() -> Result<(), Errno> {
    fail_rings_on_this_thread(libc::EAGAIN)
}

/// Makes the kernel start no thread for this thread, also none of its own for requests of a ring.
/// The limit is that of the process, but other threads of root are exempt from it. This thread
/// becomes one of an ordinary user. This cannot be undone.
///
/// # Errors
/// The error of `setrlimit(2)` or `setresuid(2)`.
pub fn forbid_new_threads_to_this_thread() -> Result<(), Errno> {
    const USER: libc::uid_t = 65534;
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads the limit during the call.
    if unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) } != 0 {
        return Err(Errno::last());
    }
    // SAFETY: takes integers only. The function of the C library would change all threads.
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, USER, USER, USER) };
    if changed == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn fail_rings_on_this_thread(errno: i32) -> Result<(), Errno> {
    const LOAD_WORD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_GREATER: u16 = 0x25;
    const RETURN: u16 = 0x06;
    let fail = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    let setup = u32::try_from(libc::SYS_io_uring_setup).map_err(|_| Errno::INVALID)?;
    let register = u32::try_from(libc::SYS_io_uring_register).map_err(|_| Errno::INVALID)?;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The number of the system call is the first word that the filter sees; setup, enter and
    // register have adjacent numbers.
    let mut steps = [
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_IF_GREATER, 2, 0, register),
        step(JUMP_IF_GREATER, 2, 0, setup - 1),
        step(JUMP_IF_EQUAL, 1, 0, setup),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, fail),
    ];
    let len = u16::try_from(steps.len()).expect("six steps");
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    // SAFETY: takes integers only.
    let bound = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if bound != 0 {
        return Err(Errno::last());
    }
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel copies the program, which `steps` keeps alive meanwhile.
    let installed = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    if installed == 0 { Ok(()) } else { Err(Errno::last()) }
}
