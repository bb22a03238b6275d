//! Error numbers by their Linux names.

use rustix::io::Errno;

pub const AGAIN: i32 = Errno::AGAIN.raw_os_error();
pub const ACCESS: i32 = Errno::ACCESS.raw_os_error();
pub const BAD_FILE: i32 = Errno::BADF.raw_os_error();
pub const CROSSES_DEVICES: i32 = Errno::XDEV.raw_os_error();
pub const EXISTS: i32 = Errno::EXIST.raw_os_error();
pub const FILE_TOO_BIG: i32 = Errno::FBIG.raw_os_error();
pub const INVALID: i32 = Errno::INVAL.raw_os_error();
pub const IS_DIRECTORY: i32 = Errno::ISDIR.raw_os_error();
pub const LOOP: i32 = Errno::LOOP.raw_os_error();
pub const NAME_TOO_LONG: i32 = Errno::NAMETOOLONG.raw_os_error();
pub const NOT_A_TTY: i32 = Errno::NOTTY.raw_os_error();
pub const NOT_DIRECTORY: i32 = Errno::NOTDIR.raw_os_error();
pub const NOT_EMPTY: i32 = Errno::NOTEMPTY.raw_os_error();
pub const NOT_FOUND: i32 = Errno::NOENT.raw_os_error();
pub const NOT_PERMITTED: i32 = Errno::PERM.raw_os_error();
pub const NOT_SUPPORTED: i32 = Errno::OPNOTSUPP.raw_os_error();
pub const NO_ADDRESS: i32 = Errno::NXIO.raw_os_error();
pub const NO_DATA: i32 = Errno::NODATA.raw_os_error();
pub const NO_SPACE: i32 = Errno::NOSPC.raw_os_error();
pub const OUT_OF_RANGE: i32 = Errno::RANGE.raw_os_error();
pub const READ_ONLY: i32 = Errno::ROFS.raw_os_error();
pub const TOO_BIG: i32 = Errno::TOOBIG.raw_os_error();
