//! Copies of the image of a mount in use, as a crash of its process would leave it: with everything
//! that the process has submitted, and nothing that the kernel or the process only caches.
//!
//! The process of the mount is stopped meanwhile. Another process makes the copy: a thread of the
//! caller could wait for the lock of its address space, which a thread holds that waits for the
//! mount.

use crate::tool;
use anyhow::{Context, Result};
use std::path::Path;

/// Stops process `$1` until file `$2` has been copied to `$3`. Threads of `io_uring` may ignore the
/// signal; they sleep when they have nothing to do. A thread that waits in the kernel for one that
/// has stopped never stops itself, so the process continues and is stopped again.
const STOP_AND_COPY: &str = r#"
    set -e
    trap 'kill -CONT "$1"' EXIT
    trap 'exit 1' HUP INT TERM
    is_stopped() {
        awk '/^Name:/ { is_ring = /iou-/ }
             /^State:/ && $2 != "T" && !(is_ring && $2 == "S") { runs = 1 }
             END { exit runs }' "/proc/$1/task/"*/status 2>/dev/null
    }
    stop() {
        kill -STOP "$1"
        for n in 1 2 3 4 5 6 7 8 9 10; do
            if is_stopped "$1"; then return; fi
            sleep 0.02
        done
        kill -CONT "$1"
        sleep 0.02
        return 1
    }
    n=0; until stop "$1"; do
        [ $n -lt 100 ] || { echo "process $1 does not stop" >&2; exit 1; }
        n=$((n+1))
    done
    cp --sparse=always --reflink=never "$2" "$3""#;

/// Copies the image of a mount to a new file while the process that serves the mount is stopped.
pub fn copy_image(process: u64, image: &Path, copy: &Path) -> Result<()> {
    let process = process.to_string();
    let args = ["-c".as_ref(), STOP_AND_COPY.as_ref(), "sh".as_ref(), process.as_ref()];
    let args = args.into_iter().chain([image.as_os_str(), copy.as_os_str()]);
    tool::run("sh", &args.collect::<Vec<_>>()).context("a copy of a stopped mount").map(drop)
}
