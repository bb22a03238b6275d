//! `mount` and `umount`: mounts are served, match the kernel's, and release the volume at the end.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use butternut_undo::{LoopGuard, MountGuard};
use rustix::fs::{SeekFrom, seek};
use tempfile::TempDir;

use super::command::{butternut, command, shell};
use super::image::{
    CORRUPT_OFFSET, KernelMount, corrupt, kernel, kernel_tests_enabled, locked, plain,
};

/// A directory to mount on, unmounted on drop.
pub(crate) struct MountPoint {
    _guard: MountGuard,
    folder: TempDir,
}

impl MountPoint {
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

/// Opens /dev/fuse to all users for one test at a time, and restores its mode on drop.
pub(crate) struct PublicFuseDevice {
    mode: u32,
    _lock: fs::File,
}

impl PublicFuseDevice {
    pub(crate) fn new() -> Self {
        let lock = locked("dev-fuse.lock");
        let mode = fs::metadata("/dev/fuse").unwrap().mode() & 0o777;
        shell("chmod 666 /dev/fuse");
        Self { mode, _lock: lock }
    }
}

impl Drop for PublicFuseDevice {
    fn drop(&mut self) {
        shell(&format!("chmod {:o} /dev/fuse", self.mode));
    }
}

/// Mounts read-only, because tests share their images.
fn mount(image: &Path, mount_point: &MountPoint, options: &[&str]) {
    let mut words = vec!["mount", "-o", "ro", image.to_str().unwrap(), mount_point.name()];
    words.extend_from_slice(options);
    butternut(&words).ok();
}

/// Returns the processes that have `file` open.
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

/// Makes an image that only this test uses, so that `holders` finds only its own processes.
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
    let mount_point = MountPoint::new();
    let image = own_copy(&mount_point.folder);
    butternut(&["mount", image.to_str().unwrap(), mount_point.name()]).ok();
    assert!(!image.exists(), "the mount hides its image");
    fs::write(mount_point.path().join("new"), b"text").unwrap();
    butternut(&["umount", mount_point.name()]).ok();
    let read = butternut(&["cat", image.to_str().unwrap(), "new"]);
    assert_eq!(read.ok(), "text");
}

#[test]
fn a_flush_during_execve_does_not_deadlock() {
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    butternut(&["mount", own_copy(&scratch).to_str().unwrap(), mount_point.name()]).ok();
    let file = fs::File::create(mount_point.path().join("new")).unwrap();
    for round in 0..50_u64 {
        // The child's execve closes its copy of the descriptor, which makes the kernel send a
        // FLUSH.
        file.write_all_at(&[7; 4096], round * 4096).unwrap();
        assert!(std::process::Command::new("true").status().unwrap().success());
    }
    drop(file);
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn a_mount_matches_the_kernels_mount() {
    if !kernel_tests_enabled("a_mount_matches_the_kernels_mount") {
        return;
    }
    let (kernel_mount, mount_point) = (KernelMount::new(), MountPoint::new());
    mount(kernel(), &mount_point, &[]);
    assert_eq!(listing(mount_point.path()), listing(kernel_mount.path()));
    let table = shell(&format!("findmnt -no FSTYPE,OPTIONS {}", mount_point.name()));
    assert!(table.starts_with("fuse.butternut ro,"), "{table}");
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn mount_and_umount_report_in_json() {
    if !kernel_tests_enabled("mount_and_umount_report_in_json") {
        return;
    }
    let mount_point = MountPoint::new();
    let image = plain().0.to_str().unwrap();
    let output = butternut(&["mount", "--json", "-o", "ro", image, mount_point.name()]).ok();
    let report: serde_json::Value = serde_json::from_str(&output).unwrap();
    let process = report["process"].as_u64().unwrap();
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap();
    assert_eq!(
        (report["mountpoint"].as_str(), name.as_str()),
        (Some(mount_point.name()), "butternut\n")
    );
    let output = butternut(&["umount", "--json", mount_point.name()]).ok();
    assert!(output.contains("\"released\": true"), "{output}");
}

#[test]
fn umount_returns_when_the_volume_is_released() {
    if !kernel_tests_enabled("umount_returns_when_the_volume_is_released") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, mount_point) = (own_copy(&scratch), MountPoint::new());
    mount(&image, &mount_point, &[]);
    assert_eq!(fs::read(mount_point.path().join("hello.txt")).unwrap(), b"hello\n");
    assert_eq!(holders(&image).len(), 1);
    butternut(&["umount", mount_point.name()]).ok();
    assert!(!mount_point.is_mounted());
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
}

#[test]
fn umount8_and_fusermount3_end_the_daemon() {
    if !kernel_tests_enabled("umount8_and_fusermount3_end_the_daemon") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    for way in ["umount", "fusermount3 -u"] {
        let mount_point = MountPoint::new();
        mount(&image, &mount_point, &[]);
        shell(&format!("{way} {}", mount_point.name()));
        // The test runner ends a test that hangs.
        while !holders(&image).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_busy_mount_is_unmounted_only_lazily() {
    if !kernel_tests_enabled("a_busy_mount_is_unmounted_only_lazily") {
        return;
    }
    let mount_point = MountPoint::new();
    mount(&plain().0, &mount_point, &[]);
    let open = fs::File::open(mount_point.path().join("docs/numbers")).unwrap();
    let message = butternut(&["umount", mount_point.name()]).failure();
    let me = format!("is busy: process {} (", std::process::id());
    assert!(message.contains(&me) && message.contains(") has a file of it open"), "{message}");
    butternut(&["umount", "--lazy", mount_point.name()]).ok();
    assert!(!mount_point.is_mounted());
    assert!(std::io::read_to_string(open).unwrap().ends_with("20000\n"), "open files stay usable");
}

#[test]
fn umount_retries_while_a_mount_is_busy() {
    if !kernel_tests_enabled("umount_retries_while_a_mount_is_busy") {
        return;
    }
    let mount_point = MountPoint::new();
    mount(&plain().0, &mount_point, &[]);
    let open = fs::File::open(mount_point.path().join("docs/numbers")).unwrap();
    let mut unmounting = command().args(["umount", mount_point.name()]).spawn().unwrap();
    // The first attempt has failed when the command sleeps.
    let wchan = format!("/proc/{}/wchan", unmounting.id());
    let sleeps = || fs::read_to_string(&wchan).is_ok_and(|wchan| wchan.contains("nanosleep"));
    while !sleeps() {
        assert_eq!(unmounting.try_wait().unwrap(), None, "it gave up after the first attempt");
        std::thread::yield_now();
    }
    assert!(mount_point.is_mounted());
    drop(open);
    let output = unmounting.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(!mount_point.is_mounted());
}

#[test]
fn umount_names_what_keeps_a_mount_busy() {
    if !kernel_tests_enabled("umount_names_what_keeps_a_mount_busy") {
        return;
    }
    let mount_point = MountPoint::new();
    mount(&plain().0, &mount_point, &[]);
    let docs = mount_point.path().join("docs");
    let in_it = "has its working directory in it";
    let mut child = std::process::Command::new("sleep").arg("600").current_dir(&docs).spawn();
    let child = child.as_mut().unwrap();
    let message = butternut(&["umount", "--timeout", "0", mount_point.name()]).failure();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(message.contains(&format!("process {} (sleep) {in_it}", child.id())), "{message}");
    let guard = MountGuard::before_mount(&docs).unwrap();
    shell(&format!("mount -t tmpfs none {}", docs.display()));
    let message = butternut(&["umount", "--timeout", "0", mount_point.name()]).failure();
    assert!(message.contains(&format!("there is a mount on {}", docs.display())), "{message}");
    guard.unmount().unwrap();
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn umount_of_a_bind_mount_does_not_wait_for_the_daemon() {
    if !kernel_tests_enabled("umount_of_a_bind_mount_does_not_wait_for_the_daemon") {
        return;
    }
    let (mount_point, bound) = (MountPoint::new(), MountPoint::new());
    let scratch = tempfile::tempdir().unwrap();
    let image = own_copy(&scratch);
    butternut(&["mount", image.to_str().unwrap(), mount_point.name()]).ok();
    shell(&format!("mount --bind {}/docs {}", mount_point.name(), bound.name()));
    // A command that waited for the process would fail with its timeout.
    let output = butternut(&["umount", "--json", "--timeout", "20", bound.name()]).ok();
    assert!(output.contains("\"released\": false"), "{output}");
    assert!(!bound.is_mounted() && mount_point.is_mounted());
    // A bind mount keeps the volume in use when the first mount is unmounted.
    shell(&format!("mount --bind {}/docs {}", mount_point.name(), bound.name()));
    let output = butternut(&["umount", "--json", "--timeout", "20", mount_point.name()]).ok();
    assert!(output.contains("\"released\": false"), "{output}");
    fs::write(bound.path().join("new"), "written").unwrap();
    let output = butternut(&["umount", "--json", bound.name()]).ok();
    assert!(output.contains("\"released\": true"), "{output}");
    assert_eq!(holders(&image), Vec::<PathBuf>::new());
    assert_eq!(butternut(&["cat", image.to_str().unwrap(), "/docs/new"]).ok(), "written");
}

fn mount_foreground(image: &Path, mount_point: &MountPoint, options: &[&str]) -> Child {
    let mut words =
        vec!["mount", "--foreground", "-o", "ro", image.to_str().unwrap(), mount_point.name()];
    words.extend_from_slice(options);
    let mut child = command().args(&words).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = String::new();
    let stderr = child.stderr.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stderr), &mut output).unwrap();
    assert!(output.contains(": mounted ("), "{output}");
    child
}

#[test]
fn a_signal_unmounts_a_foreground_mount() {
    if !kernel_tests_enabled("a_signal_unmounts_a_foreground_mount") {
        return;
    }
    let mount_point = MountPoint::new();
    let mut child = mount_foreground(&plain().0, &mount_point, &[]);
    assert!(mount_point.is_mounted());
    shell(&format!("kill -TERM {}", child.id()));
    assert!(child.wait().unwrap().success());
    assert!(!mount_point.is_mounted());
}

#[test]
fn a_subvolume_is_mounted_by_name_option_or_id() {
    if !kernel_tests_enabled("a_subvolume_is_mounted_by_name_option_or_id") {
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
        let mount_point = MountPoint::new();
        mount(Path::new(&volume), &mount_point, options);
        assert!(mount_point.path().join("clone").exists(), "{volume} {options:?}");
        butternut(&["umount", mount_point.name()]).ok();
    }
    let mount_point = MountPoint::new();
    let both = butternut(&["mount", &format!("{image}@s1"), mount_point.name(), "-o", "subvol=s2"]);
    assert!(
        both.failure().contains("option subvol: names s2, the volume argument names s1 (name one)")
    );
}

#[test]
fn a_daemon_that_cannot_open_the_volume_reports_why() {
    let mount_point = MountPoint::new();
    let message = butternut(&["mount", "-o", "ro", "/proc/self/exe", mount_point.name()]).failure();
    assert!(
        message.starts_with("butternut: /proc/self/exe: the volume cannot be opened"),
        "{message}"
    );
    assert!(!message.contains('\n') && !mount_point.is_mounted());
}

#[test]
fn written_data_is_durable_when_umount_returns() {
    if !kernel_tests_enabled("written_data_is_durable_when_umount_returns") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, mount_point) = (own_copy(&scratch), MountPoint::new());
    let path = image.to_str().unwrap();
    butternut(&["mount", path, mount_point.name(), "-o", "commit=3600"]).ok();
    fs::write(mount_point.path().join("new"), "written\n").unwrap();
    let message = butternut(&["mkdir", path, "/other"]).failure();
    assert!(message.contains(" is busy: process "), "a second writer: {message}");
    butternut(&["umount", mount_point.name()]).ok();
    assert_eq!(butternut(&["cat", path, "/new"]).ok(), "written\n");
    shell(&format!("btrfs check --check-data-csum {path} >/dev/null 2>&1"));
}

#[test]
fn a_read_only_device_is_refused_with_a_hint_to_mount_ro() {
    if !kernel_tests_enabled("a_read_only_device_is_refused_with_a_hint_to_mount_ro") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let (image, mount_point) = (own_copy(&scratch), MountPoint::new());
    let device = LoopGuard::attach(&image, &["--read-only".as_ref()]).unwrap();
    let device = device.path().to_str().unwrap();
    let message = butternut(&["mount", device, mount_point.name()]).failure();
    let looked = butternut(&["mount", device, mount_point.name(), "-o", "ro"]);
    butternut(&["umount", mount_point.name()]);
    assert!(message.ends_with("(mount it read-only with -o ro)"), "{message}");
    assert_eq!(looked.code, Some(0), "{}", looked.err);
}

#[test]
fn inode_numbers_differ_between_subvolumes() {
    if !kernel_tests_enabled("inode_numbers_differ_between_subvolumes") {
        return;
    }
    let mount_point = MountPoint::new();
    mount(kernel(), &mount_point, &[]);
    let ino = |name: &str| fs::metadata(mount_point.path().join(name)).unwrap().ino();
    assert_ne!(ino("s1/clone"), ino("snap-ro/clone"));
    assert_ne!(ino("s1"), ino("s2"));
    assert_eq!(ino("hello.txt"), ino("hard"));
    // After the caches are dropped, the number comes from a LOOKUP and not from a listing.
    let before = ino("s1/d/e/random");
    shell("echo 2 > /proc/sys/vm/drop_caches");
    assert_eq!(ino("s1/d/e/random"), before);
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn holes_are_found_through_the_mount() {
    if !kernel_tests_enabled("holes_are_found_through_the_mount") {
        return;
    }
    let mount_point = MountPoint::new();
    mount(kernel(), &mount_point, &[]);
    let file = fs::File::open(mount_point.path().join("sparse")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(5 << 20));
    assert_eq!(seek(&file, SeekFrom::Hole(5 << 20)), Ok((5 << 20) + 4096));
    assert_eq!(seek(&file, SeekFrom::Data(6 << 20)), Err(rustix::io::Errno::NXIO));
    drop(file);
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn allow_other_checks_permissions_and_acls() {
    if !kernel_tests_enabled("allow_other_checks_permissions_and_acls") {
        return;
    }
    let mount_point = MountPoint::new();
    shell(&format!("chmod 755 {}", mount_point.name()));
    let may = |id: u32, name: &str| {
        let path = mount_point.path().join(name);
        let words =
            format!("setpriv --reuid={id} --regid={id} --clear-groups cat {}", path.display());
        shell(&format!("{words} >/dev/null 2>&1 && echo yes || echo no")).trim() == "yes"
    };
    mount(&plain().0, &mount_point, &[]);
    assert!(!may(1234, "docs/numbers"), "without allow_other only the mounting user may read");
    butternut(&["umount", mount_point.name()]).ok();
    mount(&plain().0, &mount_point, &["-o", "allow_other"]);
    assert!(may(1234, "empty"));
    assert!(!may(1234, "hello.txt"), "mode 640");
    butternut(&["umount", mount_point.name()]).ok();
    mount(kernel(), &mount_point, &["-o", "allow_other"]);
    assert!(may(1234, "d/seq"), "the mode lets other users read");
    let execute = |id: u32| {
        let path = mount_point.path().join("d/seq");
        let test =
            format!("setpriv --reuid={id} --regid={id} --clear-groups test -x {}", path.display());
        shell(&format!("{test} && echo yes || echo no")).trim() == "yes"
    };
    assert!(execute(1000), "the ACL gives user 1000 rwx");
    assert!(!execute(1234), "no other user");
    butternut(&["umount", mount_point.name()]).ok();
}

#[test]
fn an_unprivileged_user_mounts_through_fusermount3() {
    if !kernel_tests_enabled("an_unprivileged_user_mounts_through_fusermount3") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().display(), plain().0.display());
    let program = env!("CARGO_BIN_EXE_butternut");
    let _open = PublicFuseDevice::new();
    let output = shell(&format!(
        "cp --sparse=always {image} {dir}/a.img; cp {program} {dir}/butternut
         chmod 755 {dir}; mkdir {dir}/m; chown nobody {dir}/m; chmod 644 {dir}/a.img
         # fusermount3 wants a user that has a name.
         as='setpriv --reuid=nobody --regid=nogroup --clear-groups'
         $as {dir}/butternut mount -o ro {dir}/a.img {dir}/m
         $as cat {dir}/m/hello.txt
         $as {dir}/butternut umount {dir}/m
         if grep -q {dir}/m /proc/self/mounts; then echo still mounted; fi"
    ));
    assert_eq!(output, "hello\n");
    assert!(holders(&scratch.path().join("a.img")).is_empty());
}

#[test]
fn mount8_and_umount8_find_their_programs() {
    if !kernel_tests_enabled("mount8_and_umount8_find_their_programs") {
        return;
    }
    let (scratch, mount_point) = (tempfile::tempdir().unwrap(), MountPoint::new());
    let image = own_copy(&scratch);
    let (i, m, dir) = (image.display(), mount_point.name(), scratch.path().display());
    let program = env!("CARGO_BIN_EXE_butternut");
    // mount(8) searches only /sbin for helpers, which a test must not change. So the test calls the
    // helpers as mount(8) does.
    shell(&format!(
        "ln -s {program} {dir}/mount.fuse.butternut; ln -s {program} {dir}/umount.fuse.butternut
         {dir}/mount.fuse.butternut {i} {m} -o rw,noauto,user,x-systemd.automount,subvol=/
         test -e {m}/docs/numbers
         {dir}/umount.fuse.butternut {m}"
    ));
    assert!(!mount_point.is_mounted() && holders(&image).is_empty());
    // mount(8) leaves `dev` and `suid` out, because they are its defaults. Those of FUSE are not.
    for given in ["rw", "rw,nodev,nosuid", "rw,nodev", "rw,nosuid"] {
        let shown = shell(&format!(
            "{dir}/mount.fuse.butternut {i} {m} -o {given}
             findmnt -n -o VFS-OPTIONS {m}
             {dir}/umount.fuse.butternut {m}"
        ));
        for flag in ["nodev", "nosuid"] {
            let is_set = shown.trim().split(',').any(|option| option == flag);
            assert_eq!(is_set, given.contains(flag), "{given}: {shown}");
        }
    }
}

#[test]
fn a_busy_mount_is_served_after_a_signal_until_its_files_are_closed() {
    if !kernel_tests_enabled("a_busy_mount_is_served_after_a_signal_until_its_files_are_closed") {
        return;
    }
    let mount_point = MountPoint::new();
    let mut child = mount_foreground(&plain().0, &mount_point, &[]);
    let file = fs::File::open(mount_point.path().join("docs/numbers")).unwrap();
    shell(&format!("kill -TERM {}", child.id()));
    while mount_point.is_mounted() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(child.try_wait().unwrap().is_none(), "it still serves the open file");
    assert!(std::io::read_to_string(file).unwrap().ends_with("20000\n"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn umount_removes_a_mount_whose_daemon_was_killed() {
    if !kernel_tests_enabled("umount_removes_a_mount_whose_daemon_was_killed") {
        return;
    }
    let mount_point = MountPoint::new();
    let mut child = mount_foreground(&plain().0, &mount_point, &[]);
    child.kill().unwrap();
    child.wait().unwrap();
    let image = plain().0.to_str().unwrap();
    let message = butternut(&["mount", image, mount_point.name()]).failure();
    assert!(
        message.contains(
            "(the process of the mount has ended: remove the mount with `butternut umount`)"
        ),
        "{message}"
    );
    let ran = butternut(&["umount", mount_point.name()]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(!mount_point.is_mounted());
}

#[test]
fn a_corrupt_sector_fails_only_its_own_reads() {
    if !kernel_tests_enabled("a_corrupt_sector_fails_only_its_own_reads") {
        return;
    }
    let (image, was) = corrupt();
    let mount_point = MountPoint::new();
    mount(&image, &mount_point, &[]);
    let want = fs::read(was).unwrap();
    let file = fs::File::open(mount_point.path().join("file")).unwrap();
    let mut failed = Vec::new();
    for (at, want) in want.chunks(4096).enumerate() {
        let mut sector = vec![0; want.len()];
        match file.read_exact_at(&mut sector, at as u64 * 4096) {
            Ok(()) => assert!(sector == want, "wrong bytes at sector {at}"),
            Err(error) => failed.push((at * 4096, error.raw_os_error())),
        }
    }
    let eio = rustix::io::Errno::IO.raw_os_error();
    assert_eq!(failed, [(CORRUPT_OFFSET, Some(eio))]);
    drop(file);
    butternut(&["umount", mount_point.name()]).ok();
}

/// Any user may name any device as the source of a FUSE mount.
#[test]
fn a_mount_source_that_names_a_device_does_not_make_it_busy() {
    if !kernel_tests_enabled("a_mount_source_that_names_a_device_does_not_make_it_busy") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let looped = LoopGuard::attach(&own_copy(&scratch), &[]).unwrap();
    let (fake, mount_point) = (MountPoint::new(), MountPoint::new());
    let device = looped.path().to_str().unwrap();
    // The process ends at once, the mount remains.
    shell(&format!(
        "exec 3<>/dev/fuse
         mount -i -t fuse.x -o fd=3,rootmode=40000,user_id=65534,group_id=65534 {device} {}",
        fake.name()
    ));
    let (was_mounted, made) = (fake.is_mounted(), butternut(&["mkdir", device, "/new"]));
    // Unmounts before the guard does, while the device exists: mkfs.btrfs fails while the mount
    // table names a device that does not exist.
    shell(&format!("umount {}", fake.name()));
    assert!(was_mounted);
    made.ok();
    // A served volume is in use by a process, and not by the kernel.
    butternut(&["mount", device, mount_point.name()]).ok();
    for words in [&["mkdir", device, "/other"][..], &["check", device]] {
        let ran = butternut(words);
        assert_ne!(ran.code, Some(0), "{words:?}");
        assert!(ran.err.contains("(butternut) has it open"), "{words:?}: {}", ran.err);
    }
    butternut(&["umount", mount_point.name()]).ok();
}
