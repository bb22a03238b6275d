//! Calls for subvolumes of a mounted volume, beside programs that use its files. The calls are made
//! as another program makes them: without a syncfs(2) before.

use std::fs::{File, OpenOptions, hard_link, metadata, remove_file};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use butternut_sys::mapped::Mapped;
use butternut_sys::subvolume_calls as calls;
use rustix::fs::{IFlags, copy_file_range, ioctl_setflags};
use tempfile::TempDir;

use super::command::{butternut, run, shell};
use super::image::kernel_tests_enabled;
use super::mount::MountPoint;
use super::mount_end::run_in_namespace;

const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EROFS: i32 = 30;

const GIB: u64 = 1 << 30;

/// A volume with the subvolume `sub`, mounted with the command.
struct Volume {
    mount_point: MountPoint,
    root: File,
    sub: File,
    scratch: TempDir,
}

impl Volume {
    fn new(options: &str) -> Self {
        Self::of_size("8G", options)
    }

    fn of_size(size: &str, options: &str) -> Self {
        let (scratch, mount_point) = (tempfile::tempdir_in("/var/tmp").unwrap(), MountPoint::new());
        let image = scratch.path().join("volume.img");
        let image = image.to_str().unwrap();
        butternut(&["mkfs", "--size", size, image]).ok();
        butternut(&["mount", "-o", options, image, mount_point.name()]).ok();
        let root = File::open(mount_point.path()).unwrap();
        calls::create(root.as_fd(), b"sub").unwrap();
        let sub = File::open(mount_point.path().join("sub")).unwrap();
        Self { mount_point, root, sub, scratch }
    }

    fn image(&self) -> PathBuf {
        self.scratch.path().join("volume.img")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount_point.path().join(name)
    }

    /// Creates or opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<File> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).open(self.path(name))
    }

    fn snapshot(&self) -> io::Result<()> {
        calls::snapshot(self.root.as_fd(), b"snap", &self.sub, true)
    }

    fn set_read_only(&self, read_only: bool) -> Result<(), i32> {
        let set = calls::set_read_only(self.sub.as_fd(), read_only);
        set.map_err(|error| error.raw_os_error().unwrap())
    }

    /// Unmounts the volume and checks it.
    fn close(self) {
        let image = self.image();
        drop((self.root, self.sub));
        butternut(&["umount", self.mount_point.name()]).ok();
        run("btrfs", &["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()]);
    }
}

/// The kernel drops no page that a write(2) has changed and not sent. A reader would fill the page
/// again with the old bytes, which would stay.
#[test]
fn a_program_reads_what_it_wrote_beside_snapshots() {
    // A mount that dropped such pages failed within 200, in each of five runs.
    const SNAPSHOTS: usize = 400;
    const BYTES: usize = 256 << 10;
    if !kernel_tests_enabled("a_program_reads_what_it_wrote_beside_snapshots") {
        return;
    }
    for options in ["rw", "writeback", "uncached"] {
        let volume = Volume::new(options);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for name in ["sub/one", "sub/two"] {
                let (written, read) = (volume.open(name).unwrap(), volume.open(name).unwrap());
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut memory = vec![0; BYTES];
                    while !is_over.load(Ordering::Acquire) {
                        read.read_at(&mut memory, 0).unwrap();
                    }
                });
                scope.spawn(move || {
                    let mut have = vec![0; BYTES];
                    for count in 1_u64.. {
                        let want = count.to_le_bytes().repeat(BYTES / 8);
                        written.write_all_at(&want, 0).unwrap();
                        written.read_exact_at(&mut have, 0).unwrap();
                        let differs = have.iter().zip(&want).position(|(have, want)| have != want);
                        assert_eq!(differs, None, "{options}: write {count} of {name}");
                        if is_over.load(Ordering::Acquire) {
                            break;
                        }
                    }
                });
            }
            let made: io::Result<()> = (0..SNAPSHOTS).try_for_each(|_| {
                volume.snapshot()?;
                calls::delete(volume.root.as_fd(), b"snap")
            });
            is_over.store(true, Ordering::Release);
            made.unwrap();
        });
        volume.close();
    }
}

/// The command syncs, which the call does not do where the mount writes through.
#[test]
fn the_command_makes_a_snapshot_with_stores_to_mappings() {
    const BYTES: usize = 64 << 20;
    if !kernel_tests_enabled("the_command_makes_a_snapshot_with_stores_to_mappings") {
        return;
    }
    for options in ["rw", "writeback", "uncached"] {
        let volume = Volume::new(options);
        let file = volume.open("sub/file").unwrap();
        file.set_len(BYTES as u64).unwrap();
        let mapped = Mapped::shared(&file, BYTES).unwrap();
        let stored = vec![7; BYTES];
        mapped.put(0, &stored);
        let (from, to) = (volume.path("sub"), volume.path("snap"));
        butternut(&["subvolume", "snapshot", from.to_str().unwrap(), to.to_str().unwrap()]).ok();
        assert!(std::fs::read(to.join("file")).unwrap() == stored, "{options}");
        drop((mapped, file));
        volume.close();
    }
}

/// Only the kernel knows the size of a file that a write in its cache has made longer.
#[test]
fn a_snapshot_has_what_the_kernel_has_cached_far_behind_the_end_of_a_file() {
    if !kernel_tests_enabled(
        "a_snapshot_has_what_the_kernel_has_cached_far_behind_the_end_of_a_file",
    ) {
        return;
    }
    let volume = Volume::new("writeback");
    let far = [3 * GIB, 5000 * GIB, 1 << 62];
    let files = far.map(|at| {
        let file = volume.open(&format!("sub/{at}")).unwrap();
        file.write_all_at(b"x", at).unwrap();
        file
    });
    volume.snapshot().unwrap();
    for at in far {
        let path = volume.path(&format!("snap/{at}"));
        assert_eq!(metadata(&path).unwrap().len(), at + 1);
        let mut byte = [0];
        File::open(path).unwrap().read_exact_at(&mut byte, at).unwrap();
        assert_eq!(byte, *b"x");
    }
    drop(files);
    volume.close();
}

#[test]
fn a_snapshot_ends_beside_a_program_that_goes_on_writing() {
    // Mostly the snapshot follows the program to the next multiple of 1 GiB.
    const FROM: u64 = 5 * GIB - (32 << 20);
    const BYTES_MAX: u64 = 3 * GIB;
    if !kernel_tests_enabled("a_snapshot_ends_beside_a_program_that_goes_on_writing") {
        return;
    }
    let volume = Volume::new("writeback");
    let file = volume.open("sub/file").unwrap();
    // The size tells nothing of where the program writes.
    file.set_len(1 << 50).unwrap();
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let memory = vec![1; 1 << 20];
            while written.load(Ordering::Acquire) < BYTES_MAX && !is_over.load(Ordering::Acquire) {
                file.write_all_at(&memory, FROM + written.load(Ordering::Acquire)).unwrap();
                written.fetch_add(1 << 20, Ordering::AcqRel);
            }
        });
        while written.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        let made = volume.snapshot();
        let until = written.load(Ordering::Acquire);
        is_over.store(true, Ordering::Release);
        made.unwrap();
        assert!(until < BYTES_MAX, "the snapshot ended after the program");
    });
    drop(file);
    volume.close();
}

#[test]
fn a_subvolume_does_not_become_read_only_while_a_file_is_open_for_writing() {
    if !kernel_tests_enabled(
        "a_subvolume_does_not_become_read_only_while_a_file_is_open_for_writing",
    ) {
        return;
    }
    for options in ["rw", "writeback", "uncached"] {
        let volume = Volume::new(options);
        let file = volume.open("sub/file").unwrap();
        file.write_all_at(&[b'a'; 4096], 0).unwrap();
        assert_eq!(volume.set_read_only(true), Err(EBUSY), "{options}: an open file");
        let mapped = Mapped::shared(&file, 4096).unwrap();
        drop(file);
        mapped.put(0, b"stored");
        assert_eq!(volume.set_read_only(true), Err(EBUSY), "{options}: a mapped file");
        drop(mapped);
        assert_eq!(volume.set_read_only(true), Ok(()), "{options}");
        let refused = volume.open("sub/file").map_err(|error| error.raw_os_error());
        assert_eq!(refused.err(), Some(Some(EROFS)));
        let read = std::fs::read(volume.path("sub/file")).unwrap();
        assert_eq!(read[..7], *b"storeda", "{options}");
        assert_eq!(volume.set_read_only(false), Ok(()));
        volume.open("sub/file").unwrap();
        volume.close();
    }
}

/// A file that could be opened for writing can be written, and its data becomes durable.
#[test]
fn no_write_is_lost_while_a_subvolume_becomes_read_only() {
    const SWITCHES: usize = 40;
    if !kernel_tests_enabled("no_write_is_lost_while_a_subvolume_becomes_read_only") {
        return;
    }
    for options in ["rw", "writeback"] {
        let volume = Volume::new(options);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for count in 1_u64.. {
                    // Some exist, and some do not.
                    match volume.open(&format!("sub/{}", count / 2)) {
                        Ok(file) => {
                            file.write_all_at(&count.to_le_bytes(), 0).unwrap();
                            file.sync_all().unwrap();
                        }
                        Err(error) => assert_eq!(error.raw_os_error(), Some(EROFS), "{error}"),
                    }
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
            let switched = (0..SWITCHES).try_for_each(|_| {
                match volume.set_read_only(true) {
                    Ok(()) | Err(EBUSY) => {}
                    Err(errno) => return Err(errno),
                }
                volume.set_read_only(false)
            });
            is_over.store(true, Ordering::Release);
            assert_eq!(switched, Ok(()), "{options}");
        });
        assert_eq!(volume.set_read_only(true), Ok(()));
        volume.close();
    }
}

/// Aborts the connection of a mount in the kernel. Threads that wait for each other cannot be
/// killed.
fn abort_connection(mount_point: &Path) {
    let shown = mount_point.display();
    shell(&format!(
        "set -e; d=$(mktemp -d); mount -t fusectl none $d
         n=$(awk -v at={shown} '$5 == at {{ print $3 }}' /proc/self/mountinfo)
         echo 1 >$d/$(((${{n%:*}} << 20) + ${{n#*:}}))/abort; umount $d; rmdir $d"
    ));
}

/// A change of flags makes the kernel forget the names of the file, which waits for the lock of
/// their directory. link(2), unlink(2) and rename(2) hold that lock, and wait for the lock of the
/// file, which the kernel holds for the change of flags until it has the reply.
#[test]
fn flags_change_beside_programs_that_link_and_unlink_the_file() {
    const CHANGES: usize = 60;
    const LIMIT: Duration = Duration::from_secs(30);
    if !kernel_tests_enabled("flags_change_beside_programs_that_link_and_unlink_the_file") {
        return;
    }
    for options in ["rw", "writeback", "uncached"] {
        let volume = Volume::new(options);
        drop(volume.open("sub/file").unwrap());
        let (path, other) = (volume.path("sub/file"), volume.path("sub/other"));
        let is_over = Arc::new(AtomicBool::new(false));
        let (done, is_done) = mpsc::channel();
        let linking = {
            let (is_over, done, path) = (Arc::clone(&is_over), done.clone(), path.clone());
            move || {
                while !is_over.load(Ordering::Acquire) {
                    hard_link(&path, &other).unwrap();
                    remove_file(&other).unwrap();
                }
                done.send(()).unwrap();
            }
        };
        let changing = move || {
            let file = File::open(&path).unwrap();
            for count in 0..CHANGES {
                let flags = if count % 2 == 0 { IFlags::NODUMP } else { IFlags::empty() };
                ioctl_setflags(&file, flags).unwrap();
            }
            is_over.store(true, Ordering::Release);
            done.send(()).unwrap();
        };
        let threads = [thread::spawn(linking), thread::spawn(changing)];
        let until = Instant::now() + LIMIT;
        let left = || until.saturating_duration_since(Instant::now());
        let ended = (0..2).all(|_| is_done.recv_timeout(left()).is_ok());
        if !ended {
            abort_connection(volume.mount_point.path());
        }
        let results = threads.map(|thread| thread.join().is_ok());
        assert!(
            ended,
            "{options}: a change of flags and a link(2) or unlink(2) wait for each other"
        );
        assert_eq!(results, [true, true], "{options}");
        volume.close();
    }
}

/// As on the kernel's btrfs, whose `copy_file_range` syncs where a descriptor has `O_SYNC` or
/// `O_DSYNC`, or the mount has `sync`.
#[test]
fn a_copy_to_a_synchronous_descriptor_is_durable_when_it_returns() {
    const O_DSYNC: i32 = 0o10000;
    const BYTES: usize = 1 << 20;
    if !kernel_tests_enabled("a_copy_to_a_synchronous_descriptor_is_durable_when_it_returns") {
        return;
    }
    for (options, remounted, flags) in [
        ("rw,commit=3600", None, O_DSYNC),
        ("writeback,commit=3600", None, O_DSYNC),
        ("uncached,commit=3600", None, O_DSYNC),
        ("rw,sync,commit=3600", None, 0),
        ("rw,commit=3600", Some("remount,sync"), 0),
    ] {
        let volume = Volume::of_size("256M", options);
        if let Some(options) = remounted {
            butternut(&["mount", "-o", options, volume.mount_point.name()]).ok();
        }
        let open = |name: &str| {
            let mut how = OpenOptions::new();
            how.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            how.open(volume.path(name)).unwrap()
        };
        let (from, to) = (open("from"), open("to"));
        from.write_all_at(&vec![b'x'; BYTES], 0).unwrap();
        from.sync_all().unwrap();
        // The name of the copy is durable.
        to.sync_all().unwrap();
        let mut copied = 0;
        while copied < BYTES {
            let (mut at, mut to_at) = (copied as u64, copied as u64);
            let left = BYTES - copied;
            copied += copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left).unwrap();
        }
        // What a crash would leave: nothing is written for another hour.
        let (image, crashed) = (volume.image(), volume.scratch.path().join("crashed.img"));
        shell(&format!("cp --sparse=always {} {}", image.display(), crashed.display()));
        let read = butternut(&["cat", crashed.to_str().unwrap(), "/to"]);
        assert_eq!(read.code, Some(0), "{}", read.err);
        let about = format!("{options} {remounted:?}: {} bytes", read.bytes.len());
        assert!(read.bytes == vec![b'x'; BYTES], "{about}");
        drop((from, to));
        volume.close();
    }
}

/// Fills a volume that is mounted with `writeback`.
fn fill(volume: &Volume) {
    const MIB: usize = 1 << 20;
    let full = volume.open("sub/full").unwrap();
    for at in 0.. {
        let written = full.write_all_at(&vec![1; MIB], at * MIB as u64);
        if written.and_then(|()| full.sync_all()).is_err() {
            return;
        }
    }
}

/// What write(2) has accepted is in the snapshot, or the call fails.
#[test]
fn a_snapshot_fails_if_the_kernel_loses_writes_that_it_had_cached() {
    if !kernel_tests_enabled("a_snapshot_fails_if_the_kernel_loses_writes_that_it_had_cached") {
        return;
    }
    let volume = Volume::of_size("256M", "writeback");
    fill(&volume);
    let file = volume.open("sub/file").unwrap();
    // The kernel caches them without a reservation.
    file.write_all_at(&vec![2; 8 << 20], 0).unwrap();
    let made = volume.snapshot();
    // The program learns of the loss at the next sync.
    assert!(file.sync_all().is_err(), "the volume was full");
    assert_eq!(made.map_err(|error| error.raw_os_error()), Err(Some(EIO)));
    drop(file);
    assert!(metadata(volume.path("snap")).is_err());
    volume.snapshot().unwrap();
    volume.close();
}

#[test]
fn a_snapshot_is_made_beside_losses_of_another_subvolume() {
    const SNAPSHOTS: usize = 12;
    if !kernel_tests_enabled("a_snapshot_is_made_beside_losses_of_another_subvolume") {
        return;
    }
    let volume = Volume::of_size("256M", "writeback");
    fill(&volume);
    // They make the walk through the unsent data of the subvolume longer.
    let open: Vec<File> =
        (0..8).map(|number| volume.open(&format!("sub/{number}")).unwrap()).collect();
    let other = volume.open("other").unwrap();
    let (losses, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let lost = other.write_all_at(&vec![2; 1 << 20], 0).and_then(|()| other.sync_all());
                losses.fetch_add(u64::from(lost.is_err()), Ordering::AcqRel);
            }
        });
        let made: io::Result<()> = (0..SNAPSHOTS).try_for_each(|number| {
            let before = losses.load(Ordering::Acquire);
            let name = format!("snap{number}");
            calls::snapshot(volume.root.as_fd(), name.as_bytes(), &volume.sub, true)?;
            while losses.load(Ordering::Acquire) == before {
                thread::yield_now();
            }
            Ok(())
        });
        is_over.store(true, Ordering::Release);
        made.unwrap();
    });
    drop((open, other));
    butternut(&["umount", volume.mount_point.name()]);
}

/// The losses are final: another call could not save them.
#[test]
fn a_shutdown_is_done_and_fails_if_the_kernel_loses_writes_that_it_had_cached() {
    // Tells that it has begun, and waits for the end of its input.
    const SHUT_DOWN: &str = "open(my $f, '<', $ARGV[0]) or exit 99; my $mode = pack('L', 0); \
         $| = 1; print 'x'; <STDIN>; ioctl($f, 0x8004587d, $mode) or exit $!; exit 0";
    if !kernel_tests_enabled(
        "a_shutdown_is_done_and_fails_if_the_kernel_loses_writes_that_it_had_cached",
    ) {
        return;
    }
    let volume = Volume::of_size("256M", "writeback");
    fill(&volume);
    let file = volume.open("sub/file").unwrap();
    let mut perl = Command::new("perl");
    perl.args(["-e", SHUT_DOWN]).arg(volume.mount_point.path());
    let mut perl = perl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    perl.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    // The kernel begins to send them, and to lose them, after a while.
    file.write_all_at(&vec![2; 8 << 20], 0).unwrap();
    let shut_down = perl.wait().unwrap();
    let made = std::fs::create_dir(volume.path("late"));
    assert_eq!(shut_down.code(), Some(EIO));
    assert_eq!(made.map_err(|error| error.raw_os_error()), Err(Some(EIO)));
    drop(file);
    volume.close();
}

/// The kernel unmounts what is mounted on a name that it forgets.
#[test]
fn a_change_of_flags_through_one_name_leaves_what_is_mounted_on_another() {
    if !kernel_tests_enabled("a_change_of_flags_through_one_name_leaves_what_is_mounted_on_another")
    {
        return;
    }
    let output = run_in_namespace(
        "$B mount -o writeback own.img m1; echo text >m1/one; ln m1/one m1/two
         echo mounted >data/file; mount --bind data/file m1/two
         chattr +d m1/one; lsattr m1/one | cut -c 7; cat m1/two; umount m1/two; $B umount m1",
    );
    assert_eq!(output, "d\nmounted\n");
}

/// The number of getdents64(2).
const LIST: u32 = if cfg!(target_arch = "x86_64") { 217 } else { 61 };

/// Returns a part of a script that begins with m1/dir: a program P takes the kernel's lock of that
/// directory, and holds it until it is killed.
fn hold_directory() -> String {
    hold_directory_at("m1/dir")
}

fn hold_directory_at(path: &str) -> String {
    // The numbers of userfaultfd(2), mmap(2) and ioctl(2).
    let [faults, mmap, ioctl] =
        if cfg!(target_arch = "x86_64") { [323, 9, 16] } else { [282, 222, 29] };
    // Lists the directory into memory whose page faults nothing handles.
    let hold = format!(
        r#"my $faults = syscall({faults}, 0x80000); my $api = pack("QQQ", 0xaa, 0, 0);
        syscall({ioctl}, $faults, 0xc018aa3f, $api) == 0 or die $!;
        my $memory = syscall({mmap}, 0, 4096, 3, 0x22, -1, 0);
        my $range = pack("QQQQ", $memory, 4096, 1, 0);
        syscall({ioctl}, $faults, 0xc020aa00, $range) == 0 or die $!;
        open(my $directory, "<", "{path}") or die $!;
        syscall({LIST}, fileno($directory), $memory, 4096)"#
    );
    format!(
        r"perl -e '{hold}' & P=$!; trap '{{ kill $P; }} 2>ignored || true' EXIT
        for n in $(seq 400); do grep -q '^{LIST} ' /proc/$P/syscall && break; sleep .05; done"
    )
}

/// Each thread waits for the lock of the directory, which a program can hold for any time.
#[test]
fn changes_of_flags_leave_a_limited_number_of_threads() {
    const CHANGES: u32 = 100;
    if !kernel_tests_enabled("changes_of_flags_leave_a_limited_number_of_threads") {
        return;
    }
    let hold = hold_directory();
    let change = format!(
        r#"open(my $file, "<", "m1/dir/file") or die $!;
        for (1..{CHANGES}) {{
            my $flags = pack("q", $_ % 2 ? 64 : 0); ioctl($file, 0x40086602, $flags) or die $!
        }}"#
    );
    let output = run_in_namespace(&format!(
        r"$B mount -o writeback own.img m1; mkdir m1/dir; echo text >m1/dir/file; D=$(daemon)
        {hold}
        perl -e '{change}'
        waiting() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-names || true; }}
        waiting; kill $P
        for n in $(seq 400); do [ $(waiting) = 0 ] && break; sleep .05; done; waiting
        $B umount m1"
    ));
    assert_eq!(output, "64\n0\n");
}

/// A program holds the lock of its directory, and any number of calls wait for it. Each has a
/// thread, and at the limit of threads nothing could be written.
#[test]
fn few_calls_of_a_user_wait_for_a_directory_and_those_of_others_go_on() {
    if !kernel_tests_enabled("few_calls_of_a_user_wait_for_a_directory_and_those_of_others_go_on") {
        return;
    }
    let hold = hold_directory();
    // Prints the errno of each call of a user when it has returned.
    let create = r#"use POSIX; $| = 1; my ($path, $user, $calls) = @ARGV;
        open(my $dir, "<", $path) or die $!;
        for my $n (1..$calls) {
            next if fork;
            POSIX::setuid($user); my $call = pack("x8 Z4088", "n$n");
            POSIX::_exit(ioctl($dir, 0x5000940e, $call) ? 0 : $! + 0)
        }
        while (wait > 0) { print $? >> 8, "\n" }"#;
    let output = run_in_namespace(&format!(
        r"$B mount -o allow_other own.img m1; D=$(daemon)
        mkdir m1/dir m1/other; chown 12345 m1/dir; chown 54321 m1/other
        {hold}
        perl -e '{create}' m1/dir 12345 100 >calls &
        threads() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c $1 || true; }}
        for n in $(seq 1200); do [ $(threads butternut-names) = 32 ] && break; sleep .05; done
        for n in $(seq 1200); do [ $(wc -l <calls) = 68 ] && break; sleep .05; done
        for n in $(seq 1200); do [ $(threads butternut-defer) = 0 ] && break; sleep .05; done
        sort -n calls | uniq -c | tr -s ' '; threads butternut-names; threads butternut-defer
        perl -e '{create}' m1/other 54321 2; $B subvolume create m1/new
        kill $P; for n in $(seq 400); do [ $(wc -l <calls) = 100 ] && break; sleep .05; done
        sort -n calls | uniq -c | tr -s ' '; ls m1/dir | wc -l
        $B umount m1"
    ));
    assert_eq!(output, " 68 11\n32\n0\n0\n0\n 32 0\n 68 11\n32\n");
}

/// A thread of the mount waits for the lock of the directory, and cannot be killed. The commit, and
/// the next use of the volume, must not wait for the program that holds the lock.
#[test]
fn an_aborted_mount_is_closed_while_a_program_holds_the_lock_of_a_directory() {
    if !kernel_tests_enabled(
        "an_aborted_mount_is_closed_while_a_program_holds_the_lock_of_a_directory",
    ) {
        return;
    }
    let hold = hold_directory();
    // Two calls: the first waits for the lock while the second is queued behind it in the kernel.
    // Neither looks up a name in the directory, which would wait for the lock itself.
    let create = r#"open(my $dir, "<", "m1/dir") or die $!;
        for my $name ("one", "two") {
            next if fork; ioctl($dir, 0x5000940e, pack("x8 Z4088", $name)); exit
        }"#;
    let output = run_in_namespace(&format!(
        r"mkdir connections; mount -t fusectl none connections
        $B mount -o commit=3600 own.img m1; mkdir m1/dir; echo text >m1/dir/file; D=$(daemon)
        N=$(mountpoint -d m1)
        {hold}
        echo late >m1/late
        perl -e '{create}'
        waiting() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-names || true; }}
        for n in $(seq 400); do [ $(waiting) = 2 ] && break; sleep .05; done; waiting
        echo 1 >connections/$((${{N%:*}} << 20 | ${{N#*:}}))/abort
        for n in $(seq 400); do $B subvolume create own.img /new 2>ignored && break; sleep .05; done
        $B ls own.img /dir; $B cat own.img /late
        kill $P; ended $D && echo ended"
    ));
    assert_eq!(output, "2\nfile\none\ntwo\nlate\nended\n");
}

/// A thread of a mount waits for the lock of a directory when the process is killed. It keeps the
/// memory of the process, into which its rings are mapped, and these must not keep the volume.
#[test]
fn a_killed_mount_releases_the_volume_while_a_program_holds_the_lock_of_a_directory() {
    if !kernel_tests_enabled(
        "a_killed_mount_releases_the_volume_while_a_program_holds_the_lock_of_a_directory",
    ) {
        return;
    }
    let hold = hold_directory();
    let create = r#"open(my $dir, "<", "m1/dir") or die $!;
        my $call = pack("x8 Z4088", "one"); ioctl($dir, 0x5000940e, $call)"#;
    let output = run_in_namespace(&format!(
        r"$B mount own.img m1; mkdir m1/dir; echo text >m1/dir/file; sync m1/dir/file; D=$(daemon)
        {hold}
        perl -e '{create}' & C=$!
        waiting() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-names || true; }}
        for n in $(seq 400); do [ $(waiting) = 1 ] && break; sleep .05; done; waiting
        kill -9 $D
        for n in $(seq 400); do $B subvolume create own.img /new 2>ignored && break; sleep .05; done
        waiting; grep -l io_uring /proc/$D/task/*/maps | wc -l
        $B ls own.img / | grep -cx -e dir -e new; $B cat own.img /dir/file
        kill $P; ended $D && echo ended"
    ));
    assert_eq!(output, "1\n1\n1\n2\ntext\nended\n");
}

/// A fallocate that fails for lack of space changes nothing, also while programs read the file.
#[test]
fn a_zeroed_range_that_finds_no_space_does_not_make_the_file_longer_beside_readers() {
    if !kernel_tests_enabled(
        "a_zeroed_range_that_finds_no_space_does_not_make_the_file_longer_beside_readers",
    ) {
        return;
    }
    let output = run_in_namespace(
        "$B mount own.img m1; $B quota enable m1
         $B subvolume create m1/sub; $B qgroup limit 32M m1/sub
         head -c 1M /dev/urandom >m1/sub/file; $B filesystem sync m1
         # They fill the first pages again and again, so the change is applied in parts.
         perl -e 'my $advise = qx(uname -m) =~ /x86_64/ ? 221 : 223;
             for (1..8) { next if fork; open(my $f, q(<), q(m1/sub/file)) or die $!;
             until (-e q(end)) { for (1..100) {
                 syscall($advise, fileno($f), 0, 0, 4);
                 sysseek($f, 0, 0); sysread($f, my $bytes, 1 << 20) } } exit }
             1 while wait > 0' & P=$!
         sleep .5
         for n in $(seq 30); do
             fallocate -z -o 0 -l 64M m1/sub/file 2>ignored && echo not refused
         done
         touch end; wait $P
         S=$(stat -c %s m1/sub/file); echo $S
         printf more >>m1/sub/file
         $B umount m1; $B mount own.img m1
         [ $(stat -c %s m1/sub/file) = $((S + 4)) ] || echo $S is $(stat -c %s m1/sub/file)
         tail -c 4 m1/sub/file; echo
         $B umount m1",
    );
    assert_eq!(output, "1048576\nmore\n");
}

/// As after an abort, the next use of the volume must not wait for the program.
#[test]
fn a_second_signal_releases_the_volume_while_a_program_holds_the_lock_of_a_directory() {
    if !kernel_tests_enabled(
        "a_second_signal_releases_the_volume_while_a_program_holds_the_lock_of_a_directory",
    ) {
        return;
    }
    let hold = hold_directory();
    let create = r#"perl -e 'open(my $dir, "<", "m1/dir") or die $!;
        my $call = pack("x8 Z4088", "one"); ioctl($dir, 0x5000940e, $call)' &"#;
    let receive = "$B receive -f stream m1/dir 2>ignored &";
    let flags = r#"perl -e 'open(my $file, "<", "m1/dir/file") or die $!;
        my $flags = pack("q", 64); ioctl($file, 0x40086602, $flags)' &"#;
    for begin in [create, receive, flags] {
        let output = run_in_namespace(&format!(
            r"$B mount -o writeback,commit=3600 own.img m1; D=$(daemon)
            $B subvolume create m1/sub; $B subvolume snapshot -r m1/sub m1/snap
            $B send -f stream m1/snap; mkdir m1/dir; echo text >m1/dir/file
            {hold}
            {begin}
            waiting() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-names || true; }}
            for n in $(seq 400); do [ $(waiting) = 1 ] && break; sleep .05; done; waiting
            kill -TERM $D; while mountpoint -q m1; do sleep .05; done; sleep 1
            kill -TERM $D
            for n in $(seq 400); do
                $B subvolume create own.img /new 2>ignored && echo created && break; sleep .05
            done
            kill $P; ended $D && echo ended"
        ));
        assert_eq!(output, "1\ncreated\nended\n", "{begin}");
    }
}

/// The kernel is made to forget the names of what is in use in a deleted subvolume, for which it
/// takes the locks of their directories.
#[test]
fn a_subvolume_is_deleted_while_a_program_holds_the_lock_of_a_directory_in_it() {
    if !kernel_tests_enabled(
        "a_subvolume_is_deleted_while_a_program_holds_the_lock_of_a_directory_in_it",
    ) {
        return;
    }
    let hold = hold_directory_at("m1/sub/held");
    let output = run_in_namespace(&format!(
        r"$B mount own.img m1; D=$(daemon); $B subvolume create m1/sub
        mkdir m1/sub/held m1/sub/other; echo text >m1/sub/held/file; echo text >m1/sub/other/file
        exec 7<m1/sub/other/file
        perl -e 'open(my $file, q(<), q(m1/sub/held/file)) or die $!; sleep' & F=$!
        for n in $(seq 400); do ls -l /proc/$F/fd | grep -q held && break; sleep .05; done
        {hold}
        waiting() {{ cat /proc/$D/task/*/comm 2>ignored | grep -c butternut-names || true; }}
        timeout -s KILL 20 $B subvolume delete -q m1/sub; ls m1 | grep -c sub || true
        for n in $(seq 400); do [ $(waiting) = 1 ] && break; sleep .05; done; waiting
        $B subvolume create -q m1/sub; echo new >m1/sub/file; cat m1/sub/file
        exec 7<&-; kill $F $P
        timeout -s KILL 20 $B subvolume sync -q m1; $B subvolume list -d m1
        for n in $(seq 400); do [ $(waiting) = 0 ] && break; sleep .05; done; waiting
        $B umount m1; $B check -q own.img"
    ));
    assert_eq!(output, "0\n1\nnew\n0\n");
}
