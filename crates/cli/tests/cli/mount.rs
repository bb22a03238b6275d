//! Mounts: served, compared with the kernel's own, unmounted, released.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use butternut_undo::{LoopGuard, MountGuard};
use rustix::fs::{SeekFrom, seek};
use tempfile::TempDir;

use super::command::{butternut, command, shell};
use super::image::{KernelView, ROTTEN_OFFSET, kernel, kernel_is_here, locked, plain, rotten};

/// A place to mount on, unmounted at the end whatever happened.
pub(crate) struct Place {
    _guard: MountGuard,
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = TempDir::with_prefix("butternut-test-").unwrap();
        Self { _guard: MountGuard::before_mount(folder.path()).unwrap(), folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn name(&self) -> &str {
        self.path().to_str().unwrap()
    }

    pub(crate) fn is_mounted(&self) -> bool {
        fs::read_to_string("/proc/self/mounts").unwrap().contains(self.name())
    }
}

/// /dev/fuse open to every user, one test after the other, and as it was afterwards.
pub(crate) struct OpenFuse {
    had: u32,
    _lock: fs::File,
}

impl OpenFuse {
    pub(crate) fn new() -> Self {
        let lock = locked("dev-fuse.lock");
        let had = fs::metadata("/dev/fuse").unwrap().mode() & 0o777;
        shell("chmod 666 /dev/fuse");
        Self { had, _lock: lock }
    }
}

impl Drop for OpenFuse {
    fn drop(&mut self) {
        shell(&format!("chmod {:o} /dev/fuse", self.had));
    }
}

/// Mounts to look: tests share their images.
fn mount(image: &Path, place: &Place, options: &[&str]) {
    let mut words = vec!["mount", "-o", "ro", image.to_str().unwrap(), place.name()];
    words.extend_from_slice(options);
    butternut(&words).ok();
}

/// The processes that hold `file` open.
pub(crate) fn holders(file: &Path) -> Vec<PathBuf> {
    let file = file.canonicalize().unwrap();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        if open.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == file)) {
            found.push(process.path());
        }
    }
    found
}

/// An image of this test's own, so that who holds it is known.
pub(crate) fn own_copy(scratch: &TempDir) -> PathBuf {
    let copy = scratch.path().join("own.img");
    shell(&format!("cp --sparse=always {} {}", plain().0.display(), copy.display()));
    copy
}

fn listing(root: &Path) -> Vec<String> {
    let root = root.display();
    let text = shell(&format!(
        "cd {root}
         find . -printf '%p %y %m %n %U %G %s %b %A@ %T@ %C@ %l\\n' | sort
         find . -print0 | sort -z | xargs -0 getfattr -h -d -m - -e hex
         find . -type f -print0 | sort -z | xargs -0 sha256sum"
    ));
    text.lines().filter(|line| !line.contains("/nested ")).map(str::to_owned).collect()
}

#[test]
fn a_volume_is_mounted_over_the_directory_that_holds_it() {
    let place = Place::new();
    let image = own_copy(&place.folder);
    butternut(&["mount", image.to_str().unwrap(), place.name()]).ok();
    assert!(!image.exists(), "the mount hides its image");
    fs::write(place.path().join("new"), b"text").unwrap();
    butternut(&["umount", place.name()]).ok();
    let read = butternut(&["cat", image.to_str().unwrap(), "new"]);
    assert_eq!(read.ok(), "text");
}

#[test]
fn a_process_that_becomes_another_program_closes_what_it_wrote() {
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    butternut(&["mount", own_copy(&scratch).to_str().unwrap(), place.name()]).ok();
    let file = fs::File::create(place.path().join("new")).unwrap();
    for round in 0..50_u64 {
        // The child's execve closes its copy, and with that has the kernel send what was written.
        file.write_all_at(&[7; 4096], round * 4096).unwrap();
        assert!(std::process::Command::new("true").status().unwrap().success());
    }
    drop(file);
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn a_mount_shows_what_the_kernel_shows() {
    if !kernel_is_here("a_mount_shows_what_the_kernel_shows") {
        return;
    }
    let (view, place) = (KernelView::new(), Place::new());
    mount(kernel(), &place, &[]);
    assert_eq!(listing(place.path()), listing(view.path()));
    let table = shell(&format!("findmnt -no FSTYPE,OPTIONS {}", place.name()));
    assert!(table.starts_with("fuse.butternut ro,"), "{table}");
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn mount_and_umount_say_in_json_what_they_did() {
    if !kernel_is_here("mount_and_umount_say_in_json_what_they_did") {
        return;
    }
    let place = Place::new();
    let image = plain().0.to_str().unwrap();
    let said = butternut(&["mount", "--json", "-o", "ro", image, place.name()]).ok();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let process = said["process"].as_u64().unwrap();
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap();
    assert_eq!((said["mountpoint"].as_str(), name.as_str()), (Some(place.name()), "butternut\n"));
    let said = butternut(&["umount", "--json", place.name()]).ok();
    assert!(said.contains("\"released\": true"), "{said}");
}

#[test]
fn umount_returns_when_the_volume_is_released() {
    if !kernel_is_here("umount_returns_when_the_volume_is_released") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, place) = (own_copy(&scratch), Place::new());
    mount(&image, &place, &[]);
    assert_eq!(fs::read(place.path().join("hello.txt")).unwrap(), b"hello\n");
    assert_eq!(holders(&image).len(), 1);
    butternut(&["umount", place.name()]).ok();
    assert!(!place.is_mounted());
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
}

#[test]
fn plain_umount_and_fusermount_end_the_daemon_too() {
    if !kernel_is_here("plain_umount_and_fusermount_end_the_daemon_too") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    for way in ["umount", "fusermount3 -u"] {
        let place = Place::new();
        mount(&image, &place, &[]);
        shell(&format!("{way} {}", place.name()));
        // The runner of the tests ends one that hangs.
        while !holders(&image).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_busy_mount_is_not_unmounted_unless_lazily() {
    if !kernel_is_here("a_busy_mount_is_not_unmounted_unless_lazily") {
        return;
    }
    let place = Place::new();
    mount(&plain().0, &place, &[]);
    let open = fs::File::open(place.path().join("docs/numbers")).unwrap();
    let said = butternut(&["umount", place.name()]).failure();
    let me = format!("is busy: process {} (", std::process::id());
    assert!(said.contains(&me) && said.contains(") has a file of it open"), "{said}");
    butternut(&["umount", "--lazy", place.name()]).ok();
    assert!(!place.is_mounted());
    assert!(std::io::read_to_string(open).unwrap().ends_with("20000\n"), "open files live on");
}

#[test]
fn a_mount_that_is_busy_for_a_moment_is_unmounted_all_the_same() {
    if !kernel_is_here("a_mount_that_is_busy_for_a_moment_is_unmounted_all_the_same") {
        return;
    }
    let place = Place::new();
    mount(&plain().0, &place, &[]);
    let open = fs::File::open(place.path().join("docs/numbers")).unwrap();
    let mut unmounting = command().args(["umount", place.name()]).spawn().unwrap();
    // The first try has failed when the command sleeps before its next one.
    let wchan = format!("/proc/{}/wchan", unmounting.id());
    let sleeps = || fs::read_to_string(&wchan).is_ok_and(|place| place.contains("nanosleep"));
    while !sleeps() {
        assert_eq!(unmounting.try_wait().unwrap(), None, "it gave up at the first try");
        std::thread::yield_now();
    }
    assert!(place.is_mounted());
    drop(open);
    let output = unmounting.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(!place.is_mounted());
}

#[test]
fn what_keeps_a_mount_busy_is_named() {
    if !kernel_is_here("what_keeps_a_mount_busy_is_named") {
        return;
    }
    let place = Place::new();
    mount(&plain().0, &place, &[]);
    let docs = place.path().join("docs");
    let in_it = "has its working directory in it";
    let mut child = std::process::Command::new("sleep").arg("600").current_dir(&docs).spawn();
    let child = child.as_mut().unwrap();
    let said = butternut(&["umount", "--timeout", "0", place.name()]).failure();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.contains(&format!("process {} (sleep) {in_it}", child.id())), "{said}");
    let guard = MountGuard::before_mount(&docs).unwrap();
    shell(&format!("mount -t tmpfs none {}", docs.display()));
    let said = butternut(&["umount", "--timeout", "0", place.name()]).failure();
    assert!(said.contains(&format!("there is a mount on {}", docs.display())), "{said}");
    guard.unmount().unwrap();
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn the_umount_of_a_bind_mount_waits_for_nothing() {
    if !kernel_is_here("the_umount_of_a_bind_mount_waits_for_nothing") {
        return;
    }
    let (place, bound) = (Place::new(), Place::new());
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    butternut(&["mount", image.to_str().unwrap(), place.name()]).ok();
    shell(&format!("mount --bind {}/docs {}", place.name(), bound.name()));
    // A command that waits for the process fails when its patience ends.
    let said = butternut(&["umount", "--json", "--timeout", "20", bound.name()]).ok();
    assert!(said.contains("\"released\": false"), "{said}");
    assert!(!bound.is_mounted() && place.is_mounted());
    // Nor has the first mount that goes released the volume; the last one has.
    shell(&format!("mount --bind {}/docs {}", place.name(), bound.name()));
    let said = butternut(&["umount", "--json", "--timeout", "20", place.name()]).ok();
    assert!(said.contains("\"released\": false"), "{said}");
    fs::write(bound.path().join("new"), "written").unwrap();
    let said = butternut(&["umount", "--json", bound.name()]).ok();
    assert!(said.contains("\"released\": true"), "{said}");
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    assert_eq!(butternut(&["cat", image.to_str().unwrap(), "/docs/new"]).ok(), "written");
}

fn served(image: &Path, place: &Place, options: &[&str]) -> Child {
    let mut words =
        vec!["mount", "--foreground", "-o", "ro", image.to_str().unwrap(), place.name()];
    words.extend_from_slice(options);
    let mut child = command().args(&words).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let stderr = child.stderr.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stderr), &mut said).unwrap();
    assert!(said.contains(": serves ("), "{said}");
    child
}

#[test]
fn a_signal_unmounts_a_foreground_mount() {
    if !kernel_is_here("a_signal_unmounts_a_foreground_mount") {
        return;
    }
    let place = Place::new();
    let mut child = served(&plain().0, &place, &[]);
    assert!(place.is_mounted());
    shell(&format!("kill -TERM {}", child.id()));
    assert!(child.wait().unwrap().success());
    assert!(!place.is_mounted());
}

#[test]
fn a_subvolume_is_mounted_by_name_option_or_id() {
    if !kernel_is_here("a_subvolume_is_mounted_by_name_option_or_id") {
        return;
    }
    let image = kernel().display().to_string();
    let ways: [(String, &[&str]); 4] = [
        (format!("{image}@snap-ro"), &[]),
        (image.clone(), &["-o", "ro,subvol=snap-ro"]),
        (image.clone(), &["-o", "subvol=/snap-ro"]),
        (image.clone(), &["-o", "subvolid=259,noatime"]),
    ];
    for (volume, options) in ways {
        let place = Place::new();
        mount(Path::new(&volume), &place, options);
        assert!(place.path().join("clone").exists(), "{volume} {options:?}");
        butternut(&["umount", place.name()]).ok();
    }
    let place = Place::new();
    let both = butternut(&["mount", &format!("{image}@s1"), place.name(), "-o", "subvol=s2"]);
    assert!(both.failure().contains("option subvol: names s2, the volume s1 (name one)"));
}

#[test]
fn a_daemon_that_cannot_serve_says_why_and_fails() {
    let place = Place::new();
    let said = butternut(&["mount", "-o", "ro", "/proc/self/exe", place.name()]).failure();
    assert!(said.starts_with("butternut: /proc/self/exe: the volume cannot be opened"), "{said}");
    assert!(!said.contains('\n') && !place.is_mounted());
}

#[test]
fn what_is_written_is_there_when_umount_returns() {
    if !kernel_is_here("what_is_written_is_there_when_umount_returns") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, place) = (own_copy(&scratch), Place::new());
    let path = image.to_str().unwrap();
    butternut(&["mount", path, place.name(), "-o", "commit=3600"]).ok();
    fs::write(place.path().join("new"), "written\n").unwrap();
    let said = butternut(&["mkdir", path, "/other"]).failure();
    assert!(said.contains(" is busy: process "), "a second writer: {said}");
    butternut(&["umount", place.name()]).ok();
    assert_eq!(butternut(&["cat", path, "/new"]).ok(), "written\n");
    shell(&format!("btrfs check --check-data-csum {path} >/dev/null 2>&1"));
}

#[test]
fn what_cannot_be_written_is_refused_with_the_way_to_look_at_it() {
    if !kernel_is_here("what_cannot_be_written_is_refused_with_the_way_to_look_at_it") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, place) = (own_copy(&scratch), Place::new());
    let device = LoopGuard::attach(&image, &["--read-only".as_ref()]).unwrap();
    let device = device.path().to_str().unwrap();
    let said = butternut(&["mount", device, place.name()]).failure();
    let looked = butternut(&["mount", device, place.name(), "-o", "ro"]);
    butternut(&["umount", place.name()]);
    assert!(said.ends_with("(with -o ro it can be looked at)"), "{said}");
    assert_eq!(looked.code, Some(0), "{}", looked.err);
}

#[test]
fn inode_numbers_differ_between_subvolumes() {
    if !kernel_is_here("inode_numbers_differ_between_subvolumes") {
        return;
    }
    let place = Place::new();
    mount(kernel(), &place, &[]);
    let ino = |name: &str| fs::metadata(place.path().join(name)).unwrap().ino();
    assert_ne!(ino("s1/clone"), ino("snap-ro/clone"));
    assert_ne!(ino("s1"), ino("s2"));
    assert_eq!(ino("hello.txt"), ino("hard"));
    // As a cold kernel sees it: by name, not by listing.
    let before = ino("s1/d/e/random");
    shell("echo 2 > /proc/sys/vm/drop_caches");
    assert_eq!(ino("s1/d/e/random"), before);
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn holes_are_found_through_the_mount() {
    if !kernel_is_here("holes_are_found_through_the_mount") {
        return;
    }
    let place = Place::new();
    mount(kernel(), &place, &[]);
    let file = fs::File::open(place.path().join("sparse")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(5 << 20));
    assert_eq!(seek(&file, SeekFrom::Hole(5 << 20)), Ok((5 << 20) + 4096));
    assert_eq!(seek(&file, SeekFrom::Data(6 << 20)), Err(rustix::io::Errno::NXIO));
    drop(file);
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn others_are_let_in_only_with_permissions_and_acls_checked() {
    if !kernel_is_here("others_are_let_in_only_with_permissions_and_acls_checked") {
        return;
    }
    let place = Place::new();
    shell(&format!("chmod 755 {}", place.name()));
    let may = |id: u32, name: &str| {
        let path = place.path().join(name);
        let words =
            format!("setpriv --reuid={id} --regid={id} --clear-groups cat {}", path.display());
        shell(&format!("{words} >/dev/null 2>&1 && echo yes || echo no")).trim() == "yes"
    };
    mount(&plain().0, &place, &[]);
    assert!(!may(1234, "docs/numbers"), "a mount without allow_other is its owner's");
    butternut(&["umount", place.name()]).ok();
    mount(&plain().0, &place, &["-o", "allow_other"]);
    assert!(may(1234, "empty"));
    assert!(!may(1234, "hello.txt"), "mode 640");
    butternut(&["umount", place.name()]).ok();
    mount(kernel(), &place, &["-o", "allow_other"]);
    assert!(may(1234, "d/seq"), "others may read");
    let execute = |id: u32| {
        let path = place.path().join("d/seq");
        let test =
            format!("setpriv --reuid={id} --regid={id} --clear-groups test -x {}", path.display());
        shell(&format!("{test} && echo yes || echo no")).trim() == "yes"
    };
    assert!(execute(1000), "the ACL gives user 1000 rwx");
    assert!(!execute(1234), "and nobody else");
    butternut(&["umount", place.name()]).ok();
}

#[test]
fn a_user_without_root_mounts_through_fusermount() {
    if !kernel_is_here("a_user_without_root_mounts_through_fusermount") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().display(), plain().0.display());
    let program = env!("CARGO_BIN_EXE_butternut");
    let _open = OpenFuse::new();
    let said = shell(&format!(
        "cp --sparse=always {image} {dir}/a.img; cp {program} {dir}/butternut
         chmod 755 {dir}; mkdir {dir}/m; chown nobody {dir}/m; chmod 644 {dir}/a.img
         # fusermount3 wants a user that has a name.
         as='setpriv --reuid=nobody --regid=nogroup --clear-groups'
         $as {dir}/butternut mount -o ro {dir}/a.img {dir}/m
         $as cat {dir}/m/hello.txt
         $as {dir}/butternut umount {dir}/m
         if grep -q {dir}/m /proc/self/mounts; then echo still mounted; fi"
    ));
    assert_eq!(said, "hello\n");
    assert!(holders(&scratch.path().join("a.img")).is_empty());
}

#[test]
fn mount_and_umount_of_the_system_find_the_helpers() {
    if !kernel_is_here("mount_and_umount_of_the_system_find_the_helpers") {
        return;
    }
    let (scratch, place) = (tempfile::tempdir().unwrap(), Place::new());
    let image = own_copy(&scratch);
    let (i, m, dir) = (image.display(), place.name(), scratch.path().display());
    let program = env!("CARGO_BIN_EXE_butternut");
    // mount(8) looks for helpers in /sbin alone, which a test leaves as it is: the helpers are
    // called as it calls them.
    shell(&format!(
        "ln -s {program} {dir}/mount.fuse.butternut; ln -s {program} {dir}/umount.fuse.butternut
         {dir}/mount.fuse.butternut {i} {m} -o rw,noauto,user,x-systemd.automount,subvol=/
         test -e {m}/docs/numbers
         {dir}/umount.fuse.butternut {m}"
    ));
    assert!(!place.is_mounted() && holders(&image).is_empty());
}

#[test]
fn a_busy_mount_outlives_the_signal_until_its_files_are_closed() {
    if !kernel_is_here("a_busy_mount_outlives_the_signal_until_its_files_are_closed") {
        return;
    }
    let place = Place::new();
    let mut child = served(&plain().0, &place, &[]);
    let file = fs::File::open(place.path().join("docs/numbers")).unwrap();
    shell(&format!("kill -TERM {}", child.id()));
    while place.is_mounted() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(child.try_wait().unwrap().is_none(), "it still serves the open file");
    assert!(std::io::read_to_string(file).unwrap().ends_with("20000\n"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_mount_whose_daemon_was_killed_is_taken_away() {
    if !kernel_is_here("a_mount_whose_daemon_was_killed_is_taken_away") {
        return;
    }
    let place = Place::new();
    let mut child = served(&plain().0, &place, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let image = plain().0.to_str().unwrap();
    let said = butternut(&["mount", image, place.name()]).failure();
    assert!(
        said.contains("(a dead mount is still there: `butternut umount` takes it away)"),
        "{said}"
    );
    let ran = butternut(&["umount", place.name()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(!place.is_mounted());
}

#[test]
fn what_is_rotten_is_an_error_for_exactly_that_sector() {
    if !kernel_is_here("what_is_rotten_is_an_error_for_exactly_that_sector") {
        return;
    }
    let (image, was) = rotten();
    let place = Place::new();
    mount(&image, &place, &[]);
    let want = fs::read(was).unwrap();
    let file = fs::File::open(place.path().join("file")).unwrap();
    let mut failed = Vec::new();
    for (at, want) in want.chunks(4096).enumerate() {
        let mut sector = vec![0; want.len()];
        match file.read_exact_at(&mut sector, at as u64 * 4096) {
            Ok(()) => assert!(sector == want, "wrong bytes at sector {at}"),
            Err(error) => failed.push((at * 4096, error.raw_os_error())),
        }
    }
    let eio = rustix::io::Errno::IO.raw_os_error();
    assert_eq!(failed, [(ROTTEN_OFFSET, Some(eio))]);
    drop(file);
    butternut(&["umount", place.name()]).ok();
}

/// Any user may write the name of any device into the source of a FUSE mount.
#[test]
fn a_mount_that_only_names_a_device_is_no_user_of_it() {
    if !kernel_is_here("a_mount_that_only_names_a_device_is_no_user_of_it") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let looped = LoopGuard::attach(&own_copy(&scratch), &[]).unwrap();
    let (fake, place) = (Place::new(), Place::new());
    let device = looped.path().to_str().unwrap();
    // Its process ends at once, the mount stays.
    shell(&format!(
        "exec 3<>/dev/fuse
         mount -i -t fuse.x -o fd=3,rootmode=40000,user_id=65534,group_id=65534 {device} {}",
        fake.name()
    ));
    let (was_mounted, made) = (fake.is_mounted(), butternut(&["mkdir", device, "/new"]));
    // By hand, and before the device is gone: mkfs.btrfs refuses to work beside a mount of none.
    shell(&format!("umount {}", fake.name()));
    assert!(was_mounted);
    made.ok();
    // A volume that is served is in use by a process, and not by the kernel.
    butternut(&["mount", device, place.name()]).ok();
    for words in [&["mkdir", device, "/other"][..], &["check", device]] {
        let ran = butternut(words);
        assert_ne!(ran.code, Some(0), "{words:?}");
        assert!(ran.err.contains("(butternut) has it open"), "{words:?}: {}", ran.err);
    }
    butternut(&["umount", place.name()]).ok();
}
