//! The permissions of callers on files and directories as one table: every operation, by every
//! caller, on an object of every mode and flag. The same program runs it on every filesystem that
//! is compared.
//!
//! ```text
//! objects     makes the objects of each case in a directory of its own, and describes them later
//! on_file     operations on a file, through its path or a descriptor
//! in_place    operations on a directory and the names in it
//! subvolumes  calls on subvolumes that must fail, and names below a file
//! ```
//!
//! Laws:
//!
//! 1. The result of a caller is the step that failed and its errno. Root then reads the state of
//!    the objects.
//! 2. Each case has objects of its own, so operations do not affect each other.

pub mod in_place;
pub mod objects;
pub mod on_file;
pub mod operation;
pub mod subvolumes;

pub use operation::{At, Failed, Operation};
use rustix::io::Errno;
use std::path::Path;

/// The owner and the group of the objects.
pub const OWNER: u32 = 1000;
pub const GROUP: u32 = 2000;
/// The owner of directories with the sticky bit, and an id for chown.
pub const ANOTHER: u32 = 1003;

/// The callers: a name, and the `setpriv` arguments with the caller's credentials.
pub const CALLERS: [(&str, &str); 14] = [
    ("root", ""),
    ("root-less", "--bounding-set=-linux_immutable --inh-caps=-linux_immutable"),
    ("owner", "--reuid=1000 --regid=1000 --clear-groups"),
    ("owner-in-group", "--reuid=1000 --regid=1000 --groups=1000,2000,3000"),
    ("member", "--reuid=1001 --regid=1001 --groups=1001,2000"),
    ("other", "--reuid=1002 --regid=1002 --clear-groups"),
    ("other-fowner", "cap:fowner"),
    ("other-dac_override", "cap:dac_override"),
    ("other-dac_read_search", "cap:dac_read_search"),
    ("other-chown", "cap:chown"),
    ("other-fsetid", "cap:fsetid,dac_override"),
    ("other-sys_admin", "cap:sys_admin"),
    ("other-linux_immutable", "cap:linux_immutable,fowner"),
    ("other-mknod", "cap:mknod,dac_override"),
];

/// Returns the `setpriv` arguments of a caller.
pub fn arguments(caller: &str) -> Vec<String> {
    let Some(capabilities) = caller.strip_prefix("cap:") else {
        return caller.split_whitespace().map(str::to_owned).collect();
    };
    let set: Vec<_> = capabilities.split(',').map(|one| format!("+{one}")).collect();
    let set = set.join(",");
    vec![
        "--reuid=1002".to_owned(),
        "--regid=1002".to_owned(),
        "--clear-groups".to_owned(),
        format!("--inh-caps=-all,{set}"),
        format!("--ambient-caps=-all,{set}"),
    ]
}

/// The attribute flag of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    None,
    Immutable,
    AppendOnly,
}

/// The object of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    File,
    Directory,
}

/// One row of the table for all callers.
#[derive(Clone, Copy)]
pub struct Case {
    pub object: Object,
    pub mode: u32,
    pub flag: Flag,
    pub operation: &'static str,
    pub run: Operation,
}

const FILE_MODES: [u32; 3] = [0o644, 0o6777, 0o2766];
const DIRECTORY_MODES: [u32; 3] = [0o755, 0o1777, 0o2777];
const FLAGS: [Flag; 3] = [Flag::None, Flag::Immutable, Flag::AppendOnly];

/// Returns all cases, in the order of their numbers.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |object, modes: &[u32], operations: &[(&'static str, Operation)]| {
        for mode in modes {
            for flag in FLAGS {
                for (operation, run) in operations {
                    cases.push(Case { object, mode: *mode, flag, operation, run: *run });
                }
            }
        }
    };
    add(Object::File, &FILE_MODES, on_file::OPERATIONS);
    add(Object::Directory, &DIRECTORY_MODES, in_place::OPERATIONS);
    add(Object::Directory, &DIRECTORY_MODES[..2], subvolumes::OPERATIONS);
    cases
}

impl Case {
    pub fn name(&self) -> String {
        let Self { object, mode, flag, operation, .. } = self;
        format!("{object:?} {mode:o} {flag:?} {operation}").to_lowercase()
    }
}

/// Runs every case below `root` as the calling process, and returns a line for each.
pub fn try_all(root: &Path) -> Vec<String> {
    let run_case = |(at, case): (usize, Case)| match (case.run)(&root.join(at.to_string())) {
        Ok(()) => "ok".to_owned(),
        Err(Failed(step, errno)) => format!("{step}: {}", named(errno)),
    };
    cases().into_iter().enumerate().map(run_case).collect()
}

/// Returns the name of an error number that is common in the table.
fn named(errno: Errno) -> String {
    let names = [
        (Errno::PERM, "EPERM"),
        (Errno::NOENT, "ENOENT"),
        (Errno::IO, "EIO"),
        (Errno::BADF, "EBADF"),
        (Errno::ACCESS, "EACCES"),
        (Errno::EXIST, "EEXIST"),
        (Errno::XDEV, "EXDEV"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NOTDIR, "ENOTDIR"),
        (Errno::INVAL, "EINVAL"),
        (Errno::NAMETOOLONG, "ENAMETOOLONG"),
        (Errno::NOTTY, "ENOTTY"),
        (Errno::ROFS, "EROFS"),
        (Errno::NODATA, "ENODATA"),
        (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    ];
    let found = names.iter().find(|(known, _)| *known == errno);
    found.map_or_else(|| errno.raw_os_error().to_string(), |(_, name)| (*name).to_owned())
}
