//! Calls on subvolumes that must fail, and names below a file, in the directory `d` of a case.

use super::operation::{At, Failed, Operation};
use butternut_sys::subvolume_calls as calls;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

type Done = Result<(), Failed>;

/// One byte more than a name may have.
const LONG: [u8; 256] = [b'a'; 256];
/// The id of no subvolume.
const NO_ID: u64 = 1 << 40;

pub const OPERATIONS: &[(&str, Operation)] = &[
    ("below-file-open", |at| below(at, OFlags::RDONLY)),
    ("below-file-create", |at| below(at, OFlags::WRONLY | OFlags::CREATE)),
    ("below-file-create-new", |at| below(at, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)),
    ("below-file-mkdir", |at| {
        rustix::fs::mkdir(at.join("d/f/new"), Mode::from_raw_mode(0o777)).at("mkdir")
    }),
    ("below-file-unlink", |at| rustix::fs::unlink(at.join("d/f/new")).at("unlink")),
    ("below-file-rename", |at| rustix::fs::rename(at.join("d/g"), at.join("d/f/new")).at("rename")),
    ("subvolume-empty-name", |at| create(at, "d", b"")),
    ("subvolume-dot", |at| create(at, "d", b".")),
    ("subvolume-dots", |at| create(at, "d", b"..")),
    ("subvolume-slash", |at| create(at, "d", b"new/new")),
    ("subvolume-long-name", |at| create(at, "d", &LONG)),
    ("subvolume-old-name", |at| create(at, "d", b"g")),
    ("subvolume-in-file", |at| create(at, "d/f", b"new")),
    ("subvolume-dot-in-file", |at| create(at, "d/f", b".")),
    ("destroy-file", |at| destroy(at, "d", b"f")),
    ("destroy-link", |at| destroy(at, "d", b"link")),
    ("destroy-directory", |at| destroy(at, "d", b"sub")),
    ("destroy-missing", |at| destroy(at, "d", b"new")),
    ("destroy-empty-name", |at| destroy(at, "d", b"")),
    ("destroy-dot", |at| destroy(at, "d", b".")),
    ("destroy-dots", |at| destroy(at, "d", b"..")),
    ("destroy-slash", |at| destroy(at, "d", b"sub/sub")),
    ("destroy-long-name", |at| destroy(at, "d", &LONG)),
    ("destroy-in-file", |at| destroy(at, "d/f", b"f")),
    ("destroy-dots-in-file", |at| destroy(at, "d/f", b"..")),
    ("destroy-missing-id", |at| calls::delete_by_id(open(at, "d")?.as_fd(), NO_ID).at("destroy")),
    ("snapshot-directory", |at| snapshot(at, "d", b"new", "d/sub")),
    ("snapshot-file", |at| snapshot(at, "d", b"new", "d/f")),
    ("snapshot-empty-name", |at| snapshot(at, "d", b"", "d/sub")),
    ("snapshot-dots", |at| snapshot(at, "d", b"..", "d/sub")),
    ("snapshot-slash", |at| snapshot(at, "d", b"a/b", "d/sub")),
    ("snapshot-long-name", |at| snapshot(at, "d", &LONG, "d/f")),
    ("snapshot-in-file", |at| snapshot(at, "d/f", b"new", "d/sub")),
    ("snapshot-elsewhere", |at| snapshot(at, "d", b"new", "/")),
    ("default-through-file", |at| calls::set_default(open(at, "d/f")?.as_fd(), NO_ID).at("set")),
    ("default-tree", |at| calls::set_default(open(at, "d")?.as_fd(), 2).at("set")),
    ("subvolume-flags-of-file", |at| {
        calls::is_read_only(open(at, "d/f")?.as_fd()).at("read").map(drop)
    }),
    ("subvolume-flags-on-directory", |at| {
        calls::set_read_only(open(at, "d")?.as_fd(), true).at("set")
    }),
];

fn open(at: &Path, name: &str) -> Result<OwnedFd, Failed> {
    rustix::fs::open(at.join(name), OFlags::RDONLY, Mode::empty()).at("open")
}

fn below(at: &Path, flags: OFlags) -> Done {
    rustix::fs::open(at.join("d/f/new"), flags, Mode::from_raw_mode(0o666)).at("open").map(drop)
}

fn create(at: &Path, dir: &str, name: &[u8]) -> Done {
    calls::create(open(at, dir)?.as_fd(), name).at("create")
}

fn destroy(at: &Path, dir: &str, name: &[u8]) -> Done {
    calls::delete(open(at, dir)?.as_fd(), name).at("destroy")
}

fn snapshot(at: &Path, dir: &str, name: &[u8], source: &str) -> Done {
    let source = open(at, source)?;
    calls::snapshot(open(at, dir)?.as_fd(), name, source, false).at("snapshot")
}
