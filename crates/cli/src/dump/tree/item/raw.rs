//! The structures of items, which may be shorter or longer than their type.

use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// Returns the structure at the start of `data`, with zeros for bytes after its end.
pub(in crate::dump) fn padded<T: FromBytes + IntoBytes + KnownLayout>(data: &[u8]) -> T {
    let mut raw = T::new_zeroed();
    for (to, from) in raw.as_mut_bytes().iter_mut().zip(data) {
        *to = *from;
    }
    raw
}

/// Returns the bytes after the structure `T` in `data`.
pub(super) fn after<T>(data: &[u8]) -> &[u8] {
    data.get(size_of::<T>()..).unwrap_or_default()
}
