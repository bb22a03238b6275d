//! Two images: one that `mkfs.btrfs` fills without root, one that the kernel has written.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::command::shell;

/// Whether tests that need the kernel run; says so where not.
pub(crate) fn kernel_is_here(test: &str) -> bool {
    let is_left_out = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_left_out {
        eprintln!("left out for BUTTERNUT_NO_KERNEL: {test}");
    }
    !is_left_out
}

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A small tree, made by `mkfs.btrfs --rootdir`; and the tree itself.
pub(crate) fn plain() -> &'static (PathBuf, PathBuf) {
    static MADE: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    MADE.get_or_init(|| {
        let (image, tree) = (place("cli-plain.img"), place("cli-plain"));
        let (i, t) = (image.display(), tree.display());
        shell(&format!(
            "rm -rf {i} {t}; mkdir -p {t}/docs/deep; cd {t}
             printf 'hello\\n' > hello.txt; seq 20000 > docs/numbers; : > empty
             ln hello.txt docs/again; ln -s ../hello.txt docs/link; ln -s docs dirlink
             printf x > docs/deep/.hidden; printf y > \"$(printf 'odd\\nname')\"
             chmod 640 hello.txt; chmod 750 docs
             # Older mkfs.btrfs keeps whole seconds.
             find . -exec touch -h -d '2020-01-02 03:04:05' {{}} +
             touch -d '2001-02-03 04:05:06' docs
             truncate -s 200M {i}; mkfs.btrfs -q -L plain --rootdir {t} {i}"
        ));
        (image, tree)
    })
}

/// Everything that only a kernel makes: snapshots, compression, clones, devices, odd names.
pub(crate) fn kernel() -> &'static PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let image = place("cli-kernel.img");
        let mount = place("cli-kernel.mnt");
        let (i, m) = (image.display(), mount.display());
        shell(&format!(
            "mkdir -p {m}; rm -f {i}; truncate -s 1G {i}; mkfs.btrfs -q -L kernel {i}
             mount -o loop,compress=zstd {i} {m}
             trap 'cd /; umount {m}' EXIT
             cd {m}
             btrfs -q subvolume create s1; btrfs -q subvolume create s2
             btrfs -q subvolume create s1/nested; mkdir -p d/e
             printf 'hello\\n' > hello.txt; seq 100000 > d/seq; head -c 3M /dev/urandom > d/e/random
             ln -s hello.txt link; ln hello.txt hard; ln d/e/random d/random2; mkfifo fifo
             mknod null c 1 3; mknod big b 300 70000
             cp --reflink=always d/e/random s1/clone; cp -r d s1/d
             truncate -s 10M sparse; printf x | dd of=sparse bs=1 seek=5M conv=notrunc status=none
             setfattr -n user.foo -v bar hello.txt; setfattr -n trusted.x -v y d
             setfattr -h -n trusted.l -v z link
             setfacl -m u:1000:rwx d/seq; setfacl -d -m u:1000:rx d
             setcap cap_net_raw+ep d/e/random
             fallocate -l 1M prealloc; touch -d '1960-01-01 00:00:00.5' old
             touch -d '2100-01-01 00:00:00.123456789' new; chown 1000:1001 old; chmod 4755 new
             touch -h -d '1999-01-01 01:02:03.4' link
             touch \"$(printf 'bad\\377name')\" 'with space'; mkdir sticky; chmod 1777 sticky
             chmod 0 s2; touch -d '2010-01-01' d/e d
             btrfs -q subvolume snapshot -r s1 snap-ro; btrfs -q subvolume snapshot s1 snap-rw"
        ));
        image
    })
}

/// The kernel's own read-only mount of its image, for as long as this lives.
pub(crate) struct KernelView {
    pub(crate) mount: tempfile::TempDir,
}

impl KernelView {
    pub(crate) fn new() -> Self {
        let mount = tempfile::tempdir().unwrap();
        let (image, place) = (kernel().display(), mount.path().display());
        // Not the same loop device as another test's: that would be one mount twice.
        shell(&format!("mount -o loop,ro {image} {place}"));
        Self { mount }
    }

    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }
}

impl Drop for KernelView {
    fn drop(&mut self) {
        shell(&format!("umount {}", self.mount.path().display()));
    }
}
