//! Calls of our mount for the whole volume: the label, discarding free space, shutting it down, a
//! sync; and what statx(2) tells of a file: its flags, and its times in their order.

use anyhow::{Result, ensure};
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::our_volume::OurVolume;
use butternut_judges::subjects::Mounted;
use butternut_judges::{command, kept, stopped, tool, trial};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, open, statx};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, ExitCode};

const MIB: usize = 1 << 20;
/// The offset of the label in a superblock, in bytes.
const LABEL_AT: usize = 0x12b;

/// Calls `FS_IOC_SHUTDOWN` with mode `$ARGV[1]`, and exits with the errno.
const SHUT_DOWN: &str = "open(my $f, '<', $ARGV[0]) or exit 99; my $mode = pack('L', $ARGV[1]); \
     ioctl($f, 0x8004587d, $mode) or exit $!; exit 0";
/// Sets the label to `$ARGV[1]`.
const SET_LABEL: &str = "open(my $f, '<', $ARGV[0]) or exit 99; \
     my $label = pack('a256', $ARGV[1]); ioctl($f, 0x41009432, $label) or exit $!; exit 0";
/// Prints the label.
const LABEL: &str = "open(my $f, '<', $ARGV[0]) or exit 99; my $label = pack('a256', ''); \
     ioctl($f, 0x81009431, $label) or exit $!; print unpack('Z*', $label)";
/// Discards free runs of at least `$ARGV[1]` bytes.
const TRIM: &str = "open(my $f, '<', $ARGV[0]) or exit 99; \
     my $range = pack('QQQ', 0, 0x7fffffffffffffff, $ARGV[1]); \
     ioctl($f, 0xc0185879, $range) or exit $!; print((unpack('QQQ', $range))[1])";

/// Callers without a capability, with the one that these calls need, and with all others.
const USER: &str = "setpriv --reuid=1000 --regid=1000 --clear-groups";
const ADMINISTRATOR: &str = "setpriv --reuid=1000 --regid=1000 --clear-groups \
     --inh-caps=+sys_admin --ambient-caps=+sys_admin";
const ROOT_WITHOUT: &str = "setpriv --bounding-set=-sys_admin";

const NOT_PERMITTED: i32 = 1;
const IO: i32 = 5;
const INVALID: i32 = 22;

fn main() -> ExitCode {
    let mut trials = vec![
        trial::trial("label", the_label_is_shown_and_set),
        trial::trial("trim", free_space_is_discarded),
        trial::trial("may", the_calls_need_privileges),
        trial::trial("executed", a_file_that_is_executed_is_not_truncated),
    ];
    for (name, options) in [("default", ""), ("writeback", "writeback"), ("uncached", "uncached")] {
        trials.push(trial::trial(&format!("shutdown::{name}"), move || {
            a_shutdown_keeps_durable_data(options)
        }));
        trials.push(trial::trial(&format!("sync::{name}"), move || {
            a_sync_covers_what_programs_have_written(options)
        }));
        trials.push(trial::trial(&format!("flags::{name}"), move || {
            flags_are_shown_and_change_the_ctime(options)
        }));
        trials.push(trial::trial(&format!("times::{name}"), move || {
            times_of_new_files_are_in_order(options)
        }));
    }
    trial::run(trials)
}

fn ours(options: &str) -> Result<OurVolume> {
    OurVolume::sized(kept::scratch(), 1 << 30, options)
}

/// Runs one of the scripts with the credentials of `caller`; returns its status and output.
fn call(caller: &str, script: &str, path: &Path, argument: &str) -> Result<(i32, String)> {
    let mut words: Vec<&OsStr> = caller.split_whitespace().map(OsStr::new).collect();
    words.extend(["perl", "-e", script].map(OsStr::new));
    words.extend([path.as_os_str(), OsStr::new(argument)]);
    let (program, args) = words.split_first().expect("the script follows");
    let ran = tool::output(&program.to_string_lossy(), args)?;
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    Ok((ran.status.code().unwrap_or(-1), printed))
}

fn the_label_is_shown_and_set() -> Result<()> {
    let mut volume = ours("")?;
    let label = |volume: &OurVolume| call("", LABEL, volume.root()?, "");
    ensure!(label(&volume)? == (0, String::new()));
    let longest = "l".repeat(255);
    for text in ["a label", &longest] {
        ensure!(call("", SET_LABEL, volume.root()?, text)?.0 == 0);
        ensure!(label(&volume)? == (0, text.to_owned()));
        // Tools that search for a label read the device.
        let mut superblock = vec![0; 4096];
        volume.image()?.read_exact_at(&mut superblock, 64 << 10)?;
        ensure!(superblock[LABEL_AT..].starts_with(text.as_bytes()), "{text}");
        volume.remount()?;
        ensure!(label(&volume)? == (0, text.to_owned()));
    }
    ensure!(call("", SET_LABEL, volume.root()?, &"l".repeat(256))?.0 == INVALID);
    volume.unmount()?;
    volume.set_options("ro");
    volume.mount()?;
    ensure!(label(&volume)?.1 == longest);
    ensure!(call("", SET_LABEL, volume.root()?, "other")?.0 != 0);
    volume.unmount()?;
    let kernel = volume.kernel()?;
    ensure!(call("", LABEL, kernel.root(), "")? == (0, longest));
    kernel.unmount()
}

/// The kernel's open for reading may truncate, but not while a process executes the file.
fn a_file_that_is_executed_is_not_truncated() -> Result<()> {
    let mut volume = ours("")?;
    let program = volume.root()?.join("sleep");
    std::fs::copy("/bin/sleep", &program)?;
    let bytes = program.metadata()?.len();
    let mut process = Command::new(&program).arg("1000").spawn()?;
    let truncate = || open(&program, OFlags::RDONLY | OFlags::TRUNC, Mode::empty());
    let (refused, after) = (truncate().err(), program.metadata());
    process.kill()?;
    process.wait()?;
    ensure!(refused == Some(Errno::TXTBSY), "{refused:?}");
    ensure!(after?.len() == bytes);
    drop(truncate()?);
    ensure!(program.metadata()?.len() == 0);
    volume.unmount()
}

/// The attributes of statx(2) that a flag of chattr(1) sets.
const FLAGS: [(&str, StatxAttributes); 4] = [
    ("i", StatxAttributes::IMMUTABLE),
    ("a", StatxAttributes::APPEND),
    ("d", StatxAttributes::NODUMP),
    ("c", StatxAttributes::COMPRESSED),
];

fn look(path: &Path) -> Result<rustix::fs::Statx> {
    let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(statx(CWD, path, AtFlags::empty(), what)?)
}

/// Waits until a change of a file in `root` gets a later ctime than `path` has.
fn wait_for_the_clock(root: &Path, path: &Path) -> Result<()> {
    let before = path.metadata()?;
    let at = |of: &std::fs::Metadata| (of.ctime(), of.ctime_nsec());
    loop {
        let clock = root.join("clock");
        std::fs::write(&clock, "")?;
        let now = clock.metadata()?;
        std::fs::remove_file(&clock)?;
        if at(&now) > at(&before) {
            return Ok(());
        }
    }
}

/// Sets and clears each flag. Returns the attributes that statx(2) shows after each change, as far
/// as a flag of chattr(1) sets them.
fn change_flags(root: &Path) -> Result<Vec<StatxAttributes>> {
    let all = FLAGS.iter().fold(StatxAttributes::empty(), |all, (_, flag)| all | *flag);
    let path = root.join("file");
    std::fs::write(&path, "text")?;
    let mut shown = vec![look(&path)?.stx_attributes & all];
    for (flag, _) in FLAGS {
        for sign in ["+", "-"] {
            wait_for_the_clock(root, &path)?;
            let before = path.metadata()?;
            tool::run("chattr", &tool::words_and_path(&format!("{sign}{flag}"), &path))?;
            let after = path.metadata()?;
            let at = |of: &std::fs::Metadata| (of.ctime(), of.ctime_nsec());
            ensure!(at(&after) > at(&before), "chattr {sign}{flag} leaves the ctime");
            ensure!(after.modified()? == before.modified()?, "chattr {sign}{flag}: mtime");
            shown.push(look(&path)?.stx_attributes & all);
        }
    }
    std::fs::remove_file(path)?;
    Ok(shown)
}

fn flags_are_shown_and_change_the_ctime(options: &str) -> Result<()> {
    let mut volume = ours(options)?;
    let have = change_flags(volume.root()?)?;
    // Linux 6.18 takes the creation time of what a FUSE mount answers, and no attributes.
    let shows_flags = look(volume.root()?)?.stx_attributes_mask.contains(StatxAttributes::NODUMP);
    volume.unmount()?;
    let kernel = volume.kernel()?;
    let want = change_flags(kernel.root())?;
    kernel.unmount()?;
    for (number, (_, flag)) in FLAGS.into_iter().enumerate() {
        ensure!(want.get(1 + 2 * number) == Some(&flag), "{flag:?}: {want:?}");
    }
    let is_hidden = |shown: &StatxAttributes| !shows_flags && shown.is_empty();
    ensure!(have == want || have.iter().all(is_hidden), "have {have:?}, the kernel {want:?}");
    Ok(())
}

fn times_of_new_files_are_in_order(options: &str) -> Result<()> {
    const FILES: u32 = 1000;
    let mut volume = ours(options)?;
    for number in 0..FILES {
        let path = volume.root()?.join(number.to_string());
        let mut file = File::create(&path)?;
        file.write_all(b"text")?;
        drop(file);
        let found = look(&path)?;
        let [btime, mtime, ctime] = [found.stx_btime, found.stx_mtime, found.stx_ctime]
            .map(|time| (time.tv_sec, time.tv_nsec));
        ensure!(btime <= mtime && mtime <= ctime, "{number}: {btime:?}, {mtime:?}, {ctime:?}");
    }
    volume.unmount()
}

/// The files stay open, so that no close(2) sends what the kernel has cached of them.
fn a_sync_covers_what_programs_have_written(options: &str) -> Result<()> {
    const FILES: usize = 24;
    let mut volume = ours(options)?;
    let root = volume.root()?.to_path_buf();
    let content = |number: usize| vec![u8::try_from(number + 1).unwrap_or(0); 4 * MIB];
    let name = |number: usize| format!("file-{number}");
    let write = |number: usize| -> Result<File> {
        let mut file = File::create(root.join(name(number)))?;
        file.write_all(&content(number))?;
        Ok(file)
    };
    let files: Vec<File> = (0..FILES).map(write).collect::<Result<_>>()?;
    command::run(&["filesystem".into(), "sync".into(), root.clone().into()])?;
    let dir = tempfile::tempdir_in(kept::scratch())?;
    let copy = dir.path().join("copy.img");
    stopped::copy_image(volume.process()?, volume.path(), &copy)?;
    drop(files);
    volume.unmount()?;
    let kernel = KernelMount::new(&[copy], &MountHow::default())?;
    for number in 0..FILES {
        let have = std::fs::read(kernel.root().join(name(number)))?;
        ensure!(have == content(number), "{} has lost data, {} bytes", name(number), have.len());
    }
    kernel.unmount()
}

/// Commits everything: only then is the space of deleted files free.
fn commit(root: &Path) -> Result<()> {
    let mut value = [0; 64];
    rustix::fs::getxattr(root, butternut_fuse::SYNC_XATTR, &mut value[..])?;
    Ok(())
}

fn free_space_is_discarded() -> Result<()> {
    let mut volume = ours("")?;
    let root = volume.root()?.to_path_buf();
    std::fs::write(root.join("gone"), vec![7; 128 * MIB])?;
    commit(&root)?;
    std::fs::remove_file(root.join("gone"))?;
    std::fs::write(root.join("kept"), vec![8; 8 * MIB])?;
    commit(&root)?;
    let before = volume.image()?.metadata()?.blocks() * 512;
    let (status, printed) = call("", TRIM, &root, "4096")?;
    ensure!(status == 0 && printed.parse::<usize>()? >= 128 * MIB, "{status} {printed}");
    let after = volume.image()?.metadata()?.blocks() * 512;
    ensure!(before > 128 << 20 && after < 64 << 20, "{before} bytes of image, then {after}");
    ensure!(tool::text("fstrim", &[root.as_os_str()])?.is_empty());
    // As in kernel btrfs, every address is valid as a start, also past the devices, except the
    // last.
    for (start, is_address) in [(u64::MAX, false), (u64::MAX - 1, true), (1 << 40, true)] {
        let from = start.to_string();
        let words = [OsStr::new("-o"), OsStr::new(&from), root.as_os_str()];
        ensure!(tool::output("fstrim", &words)?.status.success() == is_address, "{start}");
    }
    ensure!(std::fs::read(root.join("kept"))? == vec![8; 8 * MIB]);
    volume.unmount()
}

fn the_calls_need_privileges() -> Result<()> {
    let mut volume = ours("allow_other")?;
    let root = volume.root()?.to_path_buf();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777))?;
    // Mode 3 of a shutdown is invalid: a privileged caller gets EINVAL, and nothing is shut down.
    let calls = [(SET_LABEL, "l", 0), (TRIM, "4096", 0), (SHUT_DOWN, "3", INVALID)];
    for (script, argument, allowed) in calls {
        for (caller, want) in [
            ("", allowed),
            (USER, NOT_PERMITTED),
            (ADMINISTRATOR, allowed),
            (ROOT_WITHOUT, NOT_PERMITTED),
        ] {
            let (status, _) = call(caller, script, &root, argument)?;
            ensure!(status == want, "{script} as {caller:?}: {status}, want {want}");
        }
        // Root of a user namespace of its own has no privileges here.
        let (status, _) = call("unshare --user --map-root-user", script, &root, argument)?;
        ensure!(status == NOT_PERMITTED, "{script} in a namespace: {status}");
    }
    ensure!(call(USER, LABEL, &root, "")? == (0, "l".to_owned()));
    volume.unmount()
}

fn a_shutdown_keeps_durable_data(options: &str) -> Result<()> {
    for (mode, keeps) in [("0", true), ("1", true), ("2", false)] {
        let mut volume = ours(options)?;
        let root = volume.root()?.to_path_buf();
        std::fs::write(root.join("synced"), vec![1; 3 * MIB])?;
        File::open(root.join("synced"))?.sync_all()?;
        let mut open = File::create(root.join("open"))?;
        open.write_all(&vec![2; 3 * MIB])?;
        // Makes the kernel drop the cached attributes of the directory.
        let unnamed = rustix::fs::open(&root, OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU)?;
        ensure!(call("", SHUT_DOWN, &root, mode)?.0 == 0, "mode {mode}");
        ensure!(root.metadata()?.is_dir(), "mode {mode}");
        let mut value = [0; 16];
        ensure!(rustix::fs::getxattr(&root, "butternut.daemon", &mut value[..])? > 0);
        drop(unnamed);
        let synced = command::output(&["filesystem".into(), "sync".into(), root.clone().into()])?;
        let message = String::from_utf8_lossy(&synced.stderr);
        ensure!(!synced.status.success() && message.contains("was shut down"), "{message}");
        let refused = [
            File::create(root.join("late")).map(drop),
            open.sync_all(),
            std::fs::remove_file(root.join("synced")),
            std::fs::create_dir(root.join("late")),
        ];
        for refused in refused {
            let errno = refused.err().and_then(|error| error.raw_os_error());
            ensure!(errno == Some(IO), "mode {mode}: {errno:?}");
        }
        drop(open);
        volume.remount()?;
        let root = volume.root()?;
        ensure!(std::fs::read(root.join("synced"))? == vec![1; 3 * MIB]);
        ensure!(!root.join("late").exists());
        let open = std::fs::read(root.join("open")).unwrap_or_default();
        ensure!(open == vec![2; if keeps { 3 * MIB } else { 0 }], "mode {mode}: {}", open.len());
        volume.unmount()?;
    }
    Ok(())
}
