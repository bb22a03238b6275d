//! Random bytes from the kernel, for example for a UUID.

use crate::errno::Errno;
use std::fs::File;
use std::io::Read;

/// Returns `N` random bytes.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn bytes<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    let mut source = File::open("/dev/urandom").map_err(Errno::from)?;
    source.read_exact(&mut bytes).map_err(Errno::from)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_calls_return_different_bytes() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
    }
}
