//! Memory limits by control groups, so that "twice the memory" can be measured on any machine.
//!
//! ```text
//! MemoryLimit::make(bytes) -> a group with the limit; `enter` puts a command into it
//! drop                     -> the group is removed; so it is when this process is killed
//! ```
//!
//! A group of version 2 is used where it has the memory controller. With version 1, the limit
//! counts cached file data too, but the kernel does not throttle writers by it.

use crate::size::human;
use anyhow::{Context, Result, bail};
use butternut_undo::Undo;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// How often the removal of a group is tried, while its last process is ending.
const REMOVE_TRIES: u32 = 100;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// A control group with a memory limit.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    dir: PathBuf,
    _undo: Undo,
}

/// Where a group can be made.
#[derive(Debug, PartialEq, Eq)]
enum Hierarchy {
    Unified(PathBuf),
    Version1(PathBuf),
}

impl MemoryLimit {
    /// Makes a group whose processes can use at most `bytes` of memory, cached files included.
    ///
    /// # Errors
    /// There is no memory controller, or no permission to make a group.
    pub(crate) fn make(bytes: u64) -> Result<Self> {
        let advice = "run as root where control groups are mounted, or give --memory none";
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
        let Some(hierarchy) = hierarchy(&mounts) else {
            bail!(
                "memory limit of {}: this machine mounts no control groups with the memory \
                 controller ({advice})",
                human(bytes)
            );
        };
        let name = format!("butternut-lab-{}", std::process::id());
        let (parent, files): (_, &[(&str, u64)]) = match &hierarchy {
            Hierarchy::Unified(parent) => {
                (parent, &[("memory.max", bytes), ("memory.swap.max", 0)])
            }
            Hierarchy::Version1(parent) => (parent, &[("memory.limit_in_bytes", bytes)]),
        };
        let dir = parent.join(name);
        let made = fs::create_dir(&dir);
        let is_there = made.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::AlreadyExists);
        if is_there { Ok(()) } else { made }.with_context(|| {
            format!("memory limit: {}: cannot be made ({advice})", dir.display())
        })?;
        let script = "n=0; while [ $n -lt 100 ] && ! rmdir \"$1\"; do sleep 0.1; n=$((n+1)); done";
        let limit = Self { _undo: Undo::at_death(script, &[&dir])?, dir };
        for (file, value) in files {
            let path = limit.dir.join(file);
            // A kernel without swap has no limit of it.
            if *file == "memory.swap.max" && !path.exists() {
                continue;
            }
            fs::write(&path, value.to_string())
                .with_context(|| format!("memory limit: {}: cannot be set", path.display()))?;
        }
        Ok(limit)
    }

    /// Returns a command that runs another one inside the group.
    pub(crate) fn enter(&self, command: Vec<String>) -> Vec<String> {
        let procs = self.dir.join("cgroup.procs").display().to_string();
        let script = "echo 0 >\"$0\" && exec \"$@\"";
        let shell = ["sh", "-c", script].map(str::to_owned);
        shell.into_iter().chain([procs]).chain(command).collect()
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        for _ in 0..REMOVE_TRIES {
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            thread::sleep(REMOVE_PAUSE);
        }
    }
}

/// Finds the mounted hierarchy with the memory controller; version 2 is preferred.
fn hierarchy(mounts: &str) -> Option<Hierarchy> {
    let mut version1 = None;
    for line in mounts.lines() {
        let fields: Vec<_> = line.split(' ').collect();
        let [_, place, kind, options, ..] = fields[..] else { continue };
        let place = Path::new(place);
        match kind {
            "cgroup2" if has_memory(place) => return Some(Hierarchy::Unified(place.to_owned())),
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                version1 = Some(Hierarchy::Version1(place.to_owned()));
            }
            _ => {}
        }
    }
    version1
}

/// Returns whether groups below the root of a hierarchy of version 2 can limit memory. The
/// controller is enabled for them where it is not yet.
fn has_memory(root: &Path) -> bool {
    let has = |file: &str| {
        let names = fs::read_to_string(root.join(file)).unwrap_or_default();
        names.split_whitespace().any(|name| name == "memory")
    };
    let control = "cgroup.subtree_control";
    if has("cgroup.controllers") && !has(control) {
        // An error shows in what the file says afterwards.
        drop(fs::write(root.join(control), "+memory"));
    }
    has(control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_1_is_used_where_it_has_the_controller() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
            cgroup /nowhere/cpu cgroup rw,cpu 0 0\n\
            cgroup /nowhere/memory cgroup rw,relatime,memory 0 0\n\
            cgroup2 /nowhere/unified cgroup2 rw 0 0\n";
        assert_eq!(hierarchy(mounts), Some(Hierarchy::Version1("/nowhere/memory".into())));
        assert_eq!(hierarchy("cgroup /nowhere/cpu cgroup rw,cpu 0 0\n"), None);
    }
}
