//! How a change of a file's data clears set-user-id, set-group-id and capabilities, for root and
//! for other users: case by case as on the kernel's btrfs.

use super::{ours, theirs};
use anyhow::{Result, ensure};
use butternut_judges::subjects::Mounted;
use butternut_judges::tool;
use rustix::fs::XattrFlags;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const MODES: [u32; 6] = [0o666, 0o4777, 0o4666, 0o2777, 0o2767, 0o6777];

/// Commands that change the file `$0`.
const CHANGES: [(&str, &str); 10] = [
    ("cached", "dd if=/dev/zero of=$0 bs=4k count=1 conv=notrunc status=none"),
    ("append", "dd if=/dev/zero of=$0 bs=4k count=1 conv=notrunc oflag=append status=none"),
    ("direct", "dd if=/dev/zero of=$0 bs=4k count=1 conv=notrunc oflag=direct status=none"),
    ("dsync", "dd if=/dev/zero of=$0 bs=4k count=1 conv=notrunc oflag=direct,dsync status=none"),
    (
        "direct, behind the end",
        "dd if=/dev/zero of=$0 bs=4k count=1 seek=9 oflag=direct \
     conv=notrunc status=none",
    ),
    ("truncate", "truncate --size=100 $0"),
    ("open", ": > $0"),
    ("allocate", "fallocate --length 64k $0"),
    ("punch", "fallocate --punch-hole --length 4k $0"),
    ("zero", "fallocate --zero-range --length 4k $0"),
];

/// Root; a user outside of the file's group; a member of that group with another primary group.
const CALLERS: [&str; 3] = [
    "",
    "setpriv --reuid=1000 --regid=1000 --clear-groups",
    "setpriv --reuid=1000 --regid=1000 --groups=1000,77",
];

const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const CAPABILITY_NAME: &str = "security.capability";

pub(super) fn go_as_on_the_kernel(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let (kernel, _dir) = theirs()?;
    for root in [kernel.root(), volume.root()?] {
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?;
    }
    for mode in MODES {
        for has_capability in [false, true] {
            for (what, change) in CHANGES {
                for caller in CALLERS {
                    let case = format!("{mode:o} {has_capability} {what}, as {caller:?}");
                    let try_on = |root| after(root, mode, has_capability, caller, change);
                    let (want, have) = (try_on(kernel.root())?, try_on(volume.root()?)?);
                    ensure!(want == have, "{case}: the kernel: {want}, we: {have}");
                }
            }
        }
    }
    kernel.unmount()?;
    volume.unmount()
}

/// Returns the state of a file after a change.
fn after(
    root: &Path,
    mode: u32,
    has_capability: bool,
    caller: &str,
    change: &str,
) -> Result<String> {
    let path = root.join("file");
    std::fs::write(&path, [b'a'; 16384])?;
    std::os::unix::fs::chown(&path, Some(0), Some(77))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    if has_capability {
        rustix::fs::setxattr(&path, CAPABILITY_NAME, &CAPABILITY, XattrFlags::empty())?;
    }
    let line = format!("{caller} bash -c '{change}' {}", path.display());
    let ran = tool::output("bash", &["-c", line.trim_start()])?;
    let meta = std::fs::metadata(&path)?;
    let capability = rustix::fs::getxattr(&path, CAPABILITY_NAME, &mut [0; 32][..]).is_ok();
    std::fs::remove_file(&path)?;
    let printed = String::from_utf8_lossy(&ran.stderr).into_owned();
    let (mode, size) = (meta.mode() & 0o7777, meta.size());
    Ok(format!(
        "{mode:o} {capability} {size} bytes {}",
        printed.replace(&*root.to_string_lossy(), "")
    ))
}
