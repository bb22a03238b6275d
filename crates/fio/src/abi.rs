//! Implements `shim/butternut_fio.h`, one function per call, under the laws of that header.
//!
//! All unsafe code of the crate is in this file, which does nothing else: it converts pointers to
//! references and strings, and panics and errors to an errno and a message. The shim is the only
//! caller.

#![allow(unsafe_code, reason = "called from C, by the shim alone")]
#![expect(clippy::missing_safety_doc, reason = "the laws of shim/butternut_fio.h, for all of them")]

use crate::files::{self, Grow};
use crate::requests::{Memory, Request, RequestOptions, Requests};
use crate::volumes::{Spec, Volume};
use crate::{FioError, Result};
use butternut::queue::{IoFlags, SyncKind};
use butternut::{Buffer, File};
use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

/// `BUTTERNUT_MESSAGE_BYTES`.
const MESSAGE_BYTES: usize = 512;

/// `struct butternut_spec`.
#[derive(Debug)]
#[repr(C)]
pub struct RawSpec {
    devices: *const c_char,
    subvolume: *const c_char,
    mount_options: *const c_char,
    read_only: u32,
}

/// `struct butternut_queue_spec`.
#[derive(Debug)]
#[repr(C)]
pub struct RawQueueSpec {
    depth: u32,
    mode: u32,
    buffers: u32,
    durable: u32,
    buffer_bytes: u64,
}

/// `struct butternut_done`.
#[derive(Debug)]
#[repr(C)]
pub struct RawDone {
    slot: u64,
    result: i64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_volume_open(
    spec: *const RawSpec,
    volume: *mut *mut Volume,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let spec = reference(spec)?;
        let spec = Spec {
            devices: text(spec.devices)?,
            subvolume: text(spec.subvolume)?,
            mount_options: text(spec.mount_options)?,
            read_only: spec.read_only != 0,
        };
        *exclusive(volume)? = Box::into_raw(Box::new(Volume::open(&spec)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_volume_close(
    volume: *mut Volume,
    message: *mut c_char,
) -> c_int {
    guarded(message, || reclaim(volume)?.close())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_bytes(
    volume: *const Volume,
    path: *const c_char,
    bytes: *mut u64,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        *exclusive(bytes)? = reference(volume)?.file_bytes(&text(path)?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_make(
    volume: *const Volume,
    path: *const c_char,
    in_place: u32,
    message: *mut c_char,
) -> c_int {
    guarded(message, || reference(volume)?.make_file(&text(path)?, in_place != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_unlink(
    volume: *const Volume,
    path: *const c_char,
    message: *mut c_char,
) -> c_int {
    guarded(message, || reference(volume)?.unlink_file(&text(path)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_open(
    volume: *const Volume,
    path: *const c_char,
    file: *mut *mut File,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let opened = reference(volume)?.open_file(&text(path)?)?;
        *exclusive(file)? = Box::into_raw(Box::new(opened));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_close(file: *mut File) {
    guarded(std::ptr::null_mut(), || reclaim(file).map(drop));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_grow(
    file: *const File,
    bytes: u64,
    how: u32,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let how = match how {
            0 => Grow::Nothing,
            1 => Grow::Hole,
            2 => Grow::Allocated,
            3 => Grow::AllocatedKeepSize,
            _ => return Err(FioError::Shim { what: "no such way to grow" }),
        };
        files::grow(reference(file)?, bytes, how).map_err(FioError::library("grow"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_write(
    file: *const File,
    offset: u64,
    from: *const c_void,
    bytes: usize,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let from = NonNull::new(from.cast_mut().cast()).ok_or(NULL)?;
        // SAFETY: the shim passes `bytes` bytes of memory that do not change during the call.
        let data = unsafe { std::slice::from_raw_parts(from.as_ptr(), bytes) };
        files::write_all(reference(file)?, offset, data).map_err(FioError::library("write"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_sync(file: *const File, message: *mut c_char) -> c_int {
    guarded(message, || reference(file)?.sync_all().map_err(FioError::library("sync")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_file_punch(
    file: *const File,
    offset: u64,
    bytes: u64,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        files::punch(reference(file)?, offset, bytes).map_err(FioError::library("punch a hole"))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_queue_new(
    volume: *const Volume,
    spec: *const RawQueueSpec,
    queue: *mut *mut Requests,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let spec = reference(spec)?;
        let mut flags = match spec.mode {
            0 => IoFlags::default(),
            1 => IoFlags::DIRECT,
            2 => IoFlags::UNCACHED,
            _ => return Err(FioError::Shim { what: "no such mode" }),
        };
        if spec.durable != 0 {
            flags = flags.with(IoFlags::DSYNC);
        }
        let too_large = |_| FioError::NoMemory { bytes: spec.buffer_bytes };
        let options = RequestOptions {
            depth: usize::try_from(spec.depth).map_err(too_large)?,
            flags,
            is_owned: spec.buffers != 0,
            buffer_bytes: usize::try_from(spec.buffer_bytes).map_err(too_large)?,
        };
        let made = Requests::new(reference(volume)?, options)?;
        *exclusive(queue)? = Box::into_raw(Box::new(made));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_queue_free(queue: *mut Requests) {
    guarded(std::ptr::null_mut(), || reclaim(queue).map(drop));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_queue_memory(
    queue: *mut Requests,
    slot: u64,
    memory: *mut *mut c_void,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let buffer = exclusive(queue)?.owned(slot_of(slot)?);
        let buffer = buffer.ok_or(FioError::Shim { what: "a slot without memory" })?;
        *exclusive(memory)? = buffer.as_mut_ptr().cast();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_queue_add(
    queue: *mut Requests,
    file: *const File,
    request: u32,
    slot: u64,
    offset: u64,
    buffer: *mut c_void,
    bytes: usize,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let (queue, slot) = (exclusive(queue)?, slot_of(slot)?);
        let request = match request {
            0 => Request::Read { offset },
            1 => Request::Write { offset },
            2 => Request::Sync(SyncKind::All),
            3 => Request::Sync(SyncKind::Data),
            _ => return Err(FioError::Shim { what: "no such request" }),
        };
        let memory = match request {
            Request::Sync(_) => Memory::None,
            Request::Read { .. } | Request::Write { .. } => {
                let start = NonNull::new(buffer.cast::<u8>()).ok_or(NULL)?;
                memory(queue, slot, start, bytes)
            }
        };
        queue.add(slot, reference(file)?, request, memory)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_queue_submit(
    queue: *mut Requests,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        exclusive(queue)?.submit();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn butternut_queue_reap(
    queue: *mut Requests,
    min: u32,
    max: u32,
    nanoseconds: i64,
    done: *mut RawDone,
    count: *mut u32,
    message: *mut c_char,
) -> c_int {
    guarded(message, || {
        let (queue, count) = (exclusive(queue)?, exclusive(count)?);
        let timeout = u64::try_from(nanoseconds).ok().map(Duration::from_nanos);
        queue.wait(usize::try_from(min.min(max)).unwrap_or(0), timeout);
        *count = 0;
        while *count < max {
            let Some(completion) = queue.next() else { break };
            let result = match completion.result {
                Ok(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
                Err(errno) => -i64::from(errno),
            };
            // SAFETY: the shim's array has `max` entries.
            let entry = unsafe { done.add(usize::try_from(*count).unwrap_or(0)) };
            *exclusive(entry)? =
                RawDone { slot: u64::try_from(completion.slot).unwrap_or(0), result };
            *count += 1;
        }
        if let Some(text) = queue.take_failure() {
            write_message(message, &text);
        }
        Ok(())
    })
}

const NULL: FioError = FioError::Shim { what: "a null pointer" };

/// Returns the memory of a request: the slot's own buffer, or borrowed memory.
fn memory(queue: &mut Requests, slot: usize, start: NonNull<u8>, bytes: usize) -> Memory {
    let owned = queue.owned(slot);
    if owned.is_some_and(|own| own.as_ptr() == start.as_ptr() && bytes <= own.capacity()) {
        return Memory::Slot { bytes };
    }
    // SAFETY: the shim's buffer has `bytes` initialised bytes, which stay allocated until the slot
    // is reaped. No reference points to them, and fio does not use the memory of a request in
    // flight.
    Memory::Borrowed(unsafe { Buffer::borrowed(start, bytes) })
}

/// Runs a call and returns 0, or the errno if it fails or panics; then `message` gets the message.
/// `message` is empty at the start.
fn guarded(message: *mut c_char, call: impl FnOnce() -> Result<()>) -> c_int {
    write_message(message, "");
    let error = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error,
        Err(panic) => FioError::Panic { text: panic_text(panic.as_ref()) },
    };
    write_message(message, &error.line());
    error.errno()
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text").to_owned()
}

/// Writes a message to the shim's memory, truncated to its size.
fn write_message(message: *mut c_char, text: &str) {
    let Some(message) = NonNull::new(message.cast::<u8>()) else { return };
    let bytes = &text.as_bytes()[..text.len().min(MESSAGE_BYTES - 1)];
    // SAFETY: the shim's memory has MESSAGE_BYTES bytes, and the text is not in it.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.as_ptr(), bytes.len()) };
    // SAFETY: as above; one more byte fits.
    let end = unsafe { message.add(bytes.len()) };
    // SAFETY: as above.
    unsafe { end.write(0) };
}

fn slot_of(slot: u64) -> Result<usize> {
    usize::try_from(slot).map_err(|_| FioError::Shim { what: "no such slot" })
}

/// Converts a C string. Null is the empty string.
fn text(from: *const c_char) -> Result<String> {
    if from.is_null() {
        return Ok(String::new());
    }
    // SAFETY: the shim passes NUL-terminated strings that do not change during the call.
    let text = unsafe { CStr::from_ptr(from) };
    let text = text.to_str().map_err(|_| FioError::Shim { what: "a text that is not UTF-8" })?;
    Ok(text.to_owned())
}

fn reference<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: null, a handle from this file that the shim has not freed, or a structure of the
    // shim. Either outlives the call and does not change during it.
    unsafe { pointer.as_ref() }.ok_or(NULL)
}

fn exclusive<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: null, an output variable of the shim, or a queue, which one thread uses at a time.
    // Each outlives the call.
    unsafe { pointer.as_mut() }.ok_or(NULL)
}

fn reclaim<T>(pointer: *mut T) -> Result<Box<T>> {
    let pointer = NonNull::new(pointer).ok_or(NULL)?;
    // SAFETY: the pointer is from `Box::into_raw` in this file, and the shim frees it once.
    Ok(unsafe { Box::from_raw(pointer.as_ptr()) })
}
