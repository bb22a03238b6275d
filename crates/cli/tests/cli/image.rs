//! Images: one that `mkfs.btrfs` fills without root, and ones that the kernel has written.
//!
//! They stay in Cargo's folder for temporary files of tests, under the name of their recipe.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use butternut_undo::MountGuard;
use tempfile::TempDir;

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

/// Holds a file's lock, against other threads and other processes.
pub(crate) fn locked(name: &str) -> File {
    let lock = File::create(place(name)).unwrap();
    lock.lock().unwrap();
    lock
}

/// An image by its recipe: made once, and again when the recipe changes. In the recipe, `IMG` is
/// the image and `DIR` a folder beside it, which stays.
fn made(name: &str, recipe: &str) -> (PathBuf, PathBuf) {
    let _lock = locked(&format!("{name}.lock"));
    let mut hasher = DefaultHasher::new();
    recipe.hash(&mut hasher);
    let stem = format!("{name}-{:016x}", hasher.finish());
    let (image, folder) = (place(&format!("{stem}.img")), place(&format!("{stem}.dir")));
    if !image.exists() {
        let half = place(&format!("{stem}.half"));
        let (i, d) = (half.display().to_string(), folder.display().to_string());
        shell(&format!("rm -rf {i} {d}; mkdir -p {d}"));
        let places = [folder.clone(), folder.join("m")];
        let _guards = places.map(|place| MountGuard::before_mount(&place).unwrap());
        shell(&recipe.replace("IMG", &i).replace("DIR", &d));
        std::fs::rename(&half, &image).unwrap();
    }
    (image, folder)
}

/// A small tree, made by `mkfs.btrfs --rootdir`; and the tree itself.
pub(crate) fn plain() -> &'static (PathBuf, PathBuf) {
    static MADE: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    MADE.get_or_init(|| made("cli-plain", PLAIN))
}

/// Older mkfs.btrfs keeps whole seconds, so the tree has only those.
const PLAIN: &str = r#"
    mkdir -p DIR/docs/deep; cd DIR
    printf 'hello\n' > hello.txt; seq 20000 > docs/numbers; : > empty
    ln hello.txt docs/again; ln -s ../hello.txt docs/link; ln -s docs dirlink
    printf x > docs/deep/.hidden; printf y > "$(printf 'odd\nname')"
    chmod 640 hello.txt; chmod 750 docs
    find . -exec touch -h -d '2020-01-02 03:04:05' {} +
    touch -d '2001-02-03 04:05:06' docs
    truncate -s 200M IMG; mkfs.btrfs -q -L plain --rootdir DIR IMG"#;

/// Everything that only a kernel makes: snapshots, compression, clones, devices, odd names.
pub(crate) fn kernel() -> &'static PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| made("cli-kernel", KERNEL).0)
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

/// A file of 4 MiB in one copy, of which one sector is rotten; and the file as it was.
pub(crate) fn rotten() -> (PathBuf, PathBuf) {
    let (image, folder) = made("cli-rotten", ROTTEN);
    (image, folder.join("was"))
}

/// Where the rotten sector is in its file.
pub(crate) const ROTTEN_OFFSET: usize = 244 * 4096;

/// The sector is found by what stands in it.
const ROTTEN: &str = r"
    truncate -s 300M IMG; mkfs.btrfs -q -d single IMG
    mkdir -p DIR/m; mount -o loop IMG DIR/m
    trap 'cd /; umount DIR/m 2>/dev/null || true' EXIT
    head -c 4M /dev/urandom > DIR/was
    printf 'here-it-will-rot' | dd of=DIR/was bs=4096 seek=244 conv=notrunc status=none
    cp DIR/was DIR/m/file; sync -f DIR/m; umount DIR/m
    at=$(grep -abo here-it-will-rot IMG | head -1 | cut -d: -f1)
    printf X | dd of=IMG bs=1 seek=$at conv=notrunc status=none";

/// The kernel's own read-only mount of its image, for as long as this lives.
pub(crate) struct KernelView {
    guard: Option<MountGuard>,
    mount: TempDir,
    /// One at a time: a second mount of a volume is the first one again.
    _lock: File,
}

impl KernelView {
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

impl Drop for KernelView {
    fn drop(&mut self) {
        // One that is dropped is detached where a panic left files of it open.
        if let Some(guard) = self.guard.take().filter(|_| !std::thread::panicking()) {
            guard.unmount().unwrap();
        }
    }
}
