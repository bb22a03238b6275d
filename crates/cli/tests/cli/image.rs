//! Test images: one filled by `mkfs.btrfs` without root, and others written by the kernel.
//!
//! They stay in Cargo's directory for temporary files of tests, under a hash of their recipe.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use butternut_undo::MountGuard;
use tempfile::TempDir;

use super::command::shell;

/// Returns whether tests that need the kernel run. Reports a test that does not.
pub(crate) fn kernel_tests_enabled(test: &str) -> bool {
    let is_disabled = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_disabled {
        eprintln!("left out for BUTTERNUT_NO_KERNEL: {test}");
    }
    !is_disabled
}

fn tmp_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Locks a file against other threads and other processes.
pub(crate) fn locked(name: &str) -> File {
    let lock = File::create(tmp_path(name)).unwrap();
    lock.lock().unwrap();
    lock
}

/// Returns the image of a recipe, which is built once and again when the recipe changes. In the
/// recipe, `IMG` is the image and `DIR` a directory, which is kept with the image.
pub(crate) fn build(name: &str, recipe: &str) -> (PathBuf, PathBuf) {
    let _lock = locked(&format!("{name}.lock"));
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    let stem = format!("{name}-{:016x}", hasher.finish());
    let (image, folder) = (tmp_path(&format!("{stem}.img")), tmp_path(&format!("{stem}.dir")));
    if !image.exists() {
        let partial = tmp_path(&format!("{stem}.partial"));
        let (i, d) = (partial.display().to_string(), folder.display().to_string());
        shell(&format!("rm -rf {i} {d}; mkdir -p {d}"));
        let mount_points = [folder.clone(), folder.join("m")];
        let _guards = mount_points.map(|path| MountGuard::before_mount(&path).unwrap());
        shell(&recipe.replace("IMG", &i).replace("DIR", &d));
        std::fs::rename(&partial, &image).unwrap();
    }
    (image, folder)
}

/// A small tree in an image made by `mkfs.btrfs --rootdir`, and the directory of that tree.
pub(crate) fn plain() -> &'static (PathBuf, PathBuf) {
    static IMAGE: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    IMAGE.get_or_init(|| build("cli-plain", PLAIN))
}

/// All times are whole seconds, because older versions of mkfs.btrfs store only those.
const PLAIN: &str = r#"
    mkdir -p DIR/docs/deep; cd DIR
    printf 'hello\n' > hello.txt; seq 20000 > docs/numbers; : > empty
    ln hello.txt docs/again; ln -s ../hello.txt docs/link; ln -s docs dirlink
    printf x > docs/deep/.hidden; printf y > "$(printf 'odd\nname')"
    chmod 640 hello.txt; chmod 750 docs
    find . -exec touch -h -d '2020-01-02 03:04:05' {} +
    touch -d '2001-02-03 04:05:06' docs
    truncate -s 200M IMG; mkfs.btrfs -q -L plain --rootdir DIR IMG"#;

/// An image with everything that only a kernel writes: snapshots, compression, clones, devices.
pub(crate) fn kernel() -> &'static PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    IMAGE.get_or_init(|| build("cli-kernel", KERNEL).0)
}

const KERNEL: &str = r#"
    truncate -s 1G IMG; mkfs.btrfs -q -L kernel IMG
    mount -o loop,compress=zstd IMG DIR
    trap 'cd /; umount DIR' EXIT
    cd DIR
    btrfs -q subvolume create s1; btrfs -q subvolume create s2
    btrfs -q subvolume create s1/nested; mkdir -p d/e
    printf 'hello\n' > hello.txt; seq 100000 > d/seq; head -c 3M /dev/urandom > d/e/random
    ln -s hello.txt link; ln hello.txt hard; ln d/e/random d/random2; mkfifo fifo
    mknod null c 1 3; mknod big b 300 70000
    cp --reflink=always d/e/random s1/clone; cp -r d s1/d
    truncate -s 10M sparse; printf x | dd of=sparse bs=1 seek=5M conv=notrunc status=none
    setfattr -n user.foo -v bar hello.txt; setfattr -n trusted.x -v y d
    setfattr -h -n trusted.l -v z link
    setfacl -m u:1000:rwx d/seq; setfacl -d -m u:1000:rx d; setcap cap_net_raw+ep d/e/random
    fallocate -l 1M prealloc; touch -d '1960-01-01 00:00:00.5' old
    touch -d '2100-01-01 00:00:00.123456789' new; chown 1000:1001 old; chmod 4755 new
    touch -h -d '1999-01-01 01:02:03.4' link
    touch "$(printf 'bad\377name')" 'with space'; mkdir sticky; chmod 1777 sticky
    chmod 0 s2; touch -d '2010-01-01' d/e d
    btrfs -q subvolume snapshot -r s1 snap-ro; btrfs -q subvolume snapshot s1 snap-rw"#;

/// A file of 4 MiB in one copy with one corrupt sector, and the file with the right data.
pub(crate) fn corrupt() -> (PathBuf, PathBuf) {
    let (image, folder) = build("cli-corrupt", CORRUPT);
    (image, folder.join("was"))
}

/// Offset of the corrupt sector in its file.
pub(crate) const CORRUPT_OFFSET: usize = 244 * 4096;

/// A text in the sector marks its position in the image.
const CORRUPT: &str = r"
    truncate -s 300M IMG; mkfs.btrfs -q -d single IMG
    mkdir -p DIR/m; mount -o loop IMG DIR/m
    trap 'cd /; umount DIR/m 2>/dev/null || true' EXIT
    head -c 4M /dev/urandom > DIR/was
    printf 'here-it-will-rot' | dd of=DIR/was bs=4096 seek=244 conv=notrunc status=none
    cp DIR/was DIR/m/file; sync -f DIR/m; umount DIR/m
    at=$(grep -abo here-it-will-rot IMG | head -1 | cut -d: -f1)
    printf X | dd of=IMG bs=1 seek=$at conv=notrunc status=none";

/// The kernel's own read-only mount of its image, unmounted on drop.
pub(crate) struct KernelMount {
    guard: Option<MountGuard>,
    mount: TempDir,
    /// Held for the lifetime: the kernel does not mount a volume twice.
    _lock: File,
}

impl KernelMount {
    pub(crate) fn new() -> Self {
        let lock = locked("cli-view.lock");
        let mount = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
        let guard = Some(MountGuard::before_mount(mount.path()).unwrap());
        shell(&format!("mount -o loop,ro {} {}", kernel().display(), mount.path().display()));
        Self { guard, mount, _lock: lock }
    }

    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        // After a panic the test may have files open: the guard's own drop detaches the mount.
        if let Some(guard) = self.guard.take().filter(|_| !std::thread::panicking()) {
            guard.unmount().unwrap();
        }
    }
}
