//! Paths of a stream, which are relative to the root of a subvolume.
//!
//! The kernel writes names and single slashes only, and the empty path for the root itself. All
//! else is refused: no path of a stream leads out of the subvolume by its text. (A symlink in the
//! middle of a path is for the receiver to refuse; it must not follow one.)

use crate::refused::{Refused, require};

/// Maximum length of a name in bytes.
const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a path in bytes (Linux's `PATH_MAX` with its terminating zero byte).
const PATH_BYTES_MAX: usize = 4095;

/// Checks a path and returns its names, none for the root of the subvolume.
///
/// # Errors
/// The path is absolute or too long, or has an empty or too long name, a zero byte, `.` or `..`.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>, Refused> {
    check_length(path)?;
    if path.is_empty() {
        return Ok(Vec::new());
    }
    path.split(|byte| *byte == b'/').map(|name| checked(path, name)).collect()
}

/// Checks a path as [`components`] does.
///
/// # Errors
/// As [`components`].
pub fn check_path(path: &[u8]) -> Result<(), Refused> {
    check_length(path)?;
    if path.is_empty() {
        return Ok(());
    }
    path.split(|byte| *byte == b'/').try_for_each(|name| checked(path, name).map(drop))
}

fn check_length(path: &[u8]) -> Result<(), Refused> {
    require(
        path.len() <= PATH_BYTES_MAX,
        "path length",
        path.len(),
        format_args!("at most {PATH_BYTES_MAX}"),
    )
}

fn checked<'a>(path: &[u8], name: &'a [u8]) -> Result<&'a [u8], Refused> {
    let refuse = |want: &'static str| Refused::new("path", path.escape_ascii(), want);
    match name {
        b"" => Err(refuse("a relative path without empty names")),
        b"." | b".." => Err(refuse("no . or .. in a path")),
        _ if name.contains(&0) => Err(refuse("no zero byte in a path")),
        _ if name.len() > NAME_BYTES_MAX => Err(refuse("names of at most 255 bytes")),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_cannot_leave_the_subvolume() {
        let long = [b'n'; 256];
        let refused: [&[u8]; 11] = [
            b"/", b"/etc", b"..", b"a/..", b"../a", b".", b"a//b", b"a/", b"a/./b", b"a\0b", &long,
        ];
        for path in refused {
            assert!(components(path).is_err(), "{}", path.escape_ascii());
            assert!(check_path(path).is_err(), "{}", path.escape_ascii());
        }
        assert!(components(&b"a/".repeat(2048)).is_err());
    }

    #[test]
    fn the_paths_of_the_kernel_are_accepted() {
        assert_eq!(components(b"").unwrap_or_default(), Vec::<&[u8]>::new());
        assert_eq!((check_path(b""), check_path(b"a/...b/c")), (Ok(()), Ok(())));
        assert_eq!(components(b"a/...b/c").unwrap_or_default(), [&b"a"[..], b"...b", b"c"]);
    }
}
