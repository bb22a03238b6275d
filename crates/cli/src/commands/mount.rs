//! `mount`: mounts a volume through FUSE.
//!
//! 1. Without --foreground, the command starts the program again as a [`daemon`], and returns when
//!    the daemon reports over a pipe that the volume is mounted.
//! 2. If the volume cannot be mounted, the command prints one line to stderr and exits with a
//!    status other than 0.
//! 3. [`signals`] describes how signals end the mount.
//! 4. Once the mount is made, every way out of [`serve`] unmounts and commits it first: other
//!    programs may have written to it already.
//! 5. No thread that serves, commits or ends the mount writes to stderr: [`reporter`] does. A pipe
//!    that nothing reads delays the mount and its end by a bounded time.

mod block_device;
mod daemon;
mod fixed_options;
mod join;
pub(crate) mod mount8;
pub(super) mod options;

mod remount;
mod signals;
mod syslog;
mod warnings;

use std::ffi::OsString;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use butternut::Filesystem;
use butternut_fuse::{DeviceMount, FuseError, MountAttempt, Report, Serving, Unmounter};
use butternut_sys::signal::EndSignals;
use rustix::io::Errno;

use crate::args::{GlobalArgs, MountArgs};
use crate::control::server::{ServedMount, Server};
use crate::failure::{Completion, Failure, Outcome, chain, hints, io_text};
use crate::output::notes::Notes;
use crate::output::{Output, json, reporter, stderr_line};
use crate::volume;
use crate::volume::arg::VolumeArg;
use options::ParsedOptions;
use signals::SignalThread;
use warnings::WarningReporter;

/// With fewer threads, devices are idle while replies are copied to the kernel.
const THREADS_MIN: usize = 4;

/// The volume, the mount point and the options of a mount.
struct Plan {
    volume: VolumeArg,
    mountpoint: PathBuf,
    options: ParsedOptions,
}

pub(crate) fn run(global: &GlobalArgs, args: &MountArgs, out: &mut Output) -> Outcome {
    if let [.., mountpoint] = &args.paths[..]
        && remount::is_requested(&args.options)
    {
        return remount::run(Path::new(mountpoint), &args.options, Notes::of(global));
    }
    let plan = Plan::of(global, args)?;
    if !args.ready && join::mount_served(&plan, Notes::of(global))? {
        return report_joined(global, &plan, out);
    }
    if args.foreground || args.ready {
        serve(global, args, plan)
    } else {
        daemon::start(global, args, &plan.mountpoint, out)
    }
}

impl Plan {
    fn of(global: &GlobalArgs, args: &MountArgs) -> Result<Self, Failure> {
        let Some((mountpoint, arguments)) = args.paths.split_last() else {
            return Err(Failure::new("mount", "no volume and no mount point are named"));
        };
        let mountpoint = PathBuf::from(mountpoint);
        if arguments.is_empty() {
            return Err(Failure::new("mount", "no volume is named before the mount point")
                .hint("the form is `butternut mount VOLUME MOUNTPOINT`"));
        }
        let mut volume = volume::parse_arg(arguments)?;
        let mut options = ParsedOptions::of(&args.options)?;
        options.apply_to_volume(&mut volume)?;
        options.volume.degraded |= global.degraded;
        options.fuse.source = if options.blkdev {
            block_device::source(&volume, &options)?
        } else {
            options.fsname.clone().unwrap_or_else(|| volume.typed.clone())
        };
        let cores = thread::available_parallelism().map_or(1, NonZero::get).max(THREADS_MIN);
        if let Some(threads) = args.threads {
            options.apply(format!("threads={threads}").as_bytes())?;
        }
        options.fuse.threads = options.threads.unwrap_or(cores.min(options::THREADS_MAX));
        let shown = mountpoint.display().to_string();
        let meta = std::fs::metadata(&mountpoint).map_err(|error| {
            let failure = Failure::io(&*shown, &error);
            match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => failure.hint("make the directory first"),
                Some(Errno::NOTCONN) => failure.hint(
                    "the process of the mount has ended: remove the mount with `butternut umount`",
                ),
                _ => failure,
            }
        })?;
        if !meta.is_dir() {
            return Err(Failure::new(shown, "is not a directory")
                .hint("the last argument is the mount point, after the devices"));
        }
        if mountpoint.canonicalize().is_ok_and(|path| path == Path::new("/")) {
            return Err(Failure::new(
                shown,
                "is the root directory of the system, which cannot be a mount point",
            )
            .hint("name another directory; chroot(1) can make it a root"));
        }
        Ok(Self { volume, mountpoint, options })
    }
}

/// What has been done where the output of --json cannot be written.
const MOUNTED: &str = "the volume is mounted";

/// Prints the result of a mount that an existing process serves.
fn report_joined(global: &GlobalArgs, plan: &Plan, out: &mut Output) -> Outcome {
    if global.json {
        let mountpoint = plan.mountpoint.as_os_str().as_encoded_bytes();
        json::result(out, json::Object::new().name("mountpoint", mountpoint), MOUNTED)?;
    }
    Ok(Completion::Success)
}

/// What a send stream makes can only be read, so no option is needed for that.
fn make_read_only(global: &GlobalArgs, plan: &mut Plan) -> Result<(), Failure> {
    if plan.options.is_writable_named && !global.quiet {
        let shown = &plan.volume.typed;
        stderr_line(&format!("{shown}: note: a send stream is mounted read-only"));
    }
    plan.options.apply(b"ro")
}

/// Serves the mount until it is unmounted.
fn serve(global: &GlobalArgs, args: &MountArgs, mut plan: Plan) -> Outcome {
    if args.ready {
        // Fails only for a process group leader, which a spawned child is not.
        rustix::process::setsid().map(drop).unwrap_or_default();
    }
    let signals = EndSignals::block().map_err(|errno| Failure::io("signals", &errno.into()))?;
    reporter::start().map_err(|error| Failure::io("the reporter thread", &error))?;
    let signals = SignalThread::start(signals, plan.volume.typed.clone())
        .map_err(|error| Failure::io("the signal thread", &error))?;
    // Before the volume is opened: the kernel's claim on the device protects the open.
    let device_mount = block_device::mount(&plan.options)?;
    plan.options.volume.mounted_device = device_mount.as_ref().map(DeviceMount::device);
    // Read when signals are served: a device may hang.
    let is_stream = volume::stream::is_named(&plan.volume)?;
    if is_stream {
        make_read_only(global, &mut plan)?;
    }
    let filesystem = open(&plan, is_stream)?;
    if let Some(mount) = &device_mount {
        mount.watch(&filesystem);
    }
    if !global.quiet {
        print_notices(&plan, &filesystem, is_stream);
    }
    let mountpoint = plan.mountpoint.canonicalize().unwrap_or_else(|_| plan.mountpoint.clone());
    // Read before the mount, which may hide the paths of the devices.
    // Other mounts of a stream are volumes of their own.
    let devices = if is_stream { Vec::new() } else { join::device_identities(&plan.volume) };
    let volume = join::device_paths(&plan.volume);
    let settings = fixed_options::values(&plan.options);
    plan.options.fuse.top_level = join::top_level_path(&filesystem);
    if args.ready && daemon::is_abandoned() {
        return Err(daemon::parent_failed(&Errno::PIPE.into()));
    }
    let attempt = MountAttempt::new(&mountpoint);
    signals.begin_mount(&attempt);
    let made =
        make(&plan, &filesystem, device_mount, attempt).inspect_err(|_| signals.mount_failed())?;
    signals.unmount_on_signal(made.unmounter, mountpoint.clone());
    let served = ServedMount {
        filesystem,
        devices,
        paths: volume.iter().map(|device| device.path.clone()).collect(),
        volume,
        settings,
        is_stream,
        synchronous: made.serving.synchronous(),
        whole: made.serving.detached_mount(),
        is_resizing: AtomicBool::new(false),
        hidden_names: made.serving.hidden_names(),
    };
    let control = serve_control(global, served, made.serving.device(), &mountpoint);
    let is_reported = !args.ready || daemon::report_mounted();
    if !args.ready && !global.quiet {
        stderr_line(&format!(
            "{}: mounted (unmount it with `butternut umount` or Ctrl-C)",
            mountpoint.display()
        ));
    }
    let ended = made.serving.wait();
    if let Err(FuseError::Aborted) = ended {
        // No thread is joined, since any thread may be blocked on a device.
        if let Some(control) = control {
            control.abandon_thread();
        }
        std::process::exit(signals::ABORTED);
    }
    drop(made.reporter);
    drop(control);
    if let Err(error) = &ended
        && args.ready
    {
        // A daemon has released its stderr, and perhaps no program waits for its status.
        syslog::log(syslog::CRITICAL, &format!("{}: {}", mountpoint.display(), chain(error)));
    }
    completion(ended, &mountpoint)?;
    Ok(if is_reported { Completion::Success } else { Completion::PartialFailure })
}

/// Prints what is to be known of an open volume, before it is mounted.
fn print_notices(plan: &Plan, filesystem: &Filesystem, is_stream: bool) {
    for notice in filesystem.notices() {
        stderr_line(&format!("{}: note: {notice}", plan.volume.typed));
    }
    if is_stream {
        return;
    }
    for note in &volume::contents::notes(&plan.volume.devices) {
        stderr_line(note);
    }
}

/// A mount that is served. Every way out ends it as [`Serving::wait`] does (law 4).
struct MadeMount {
    serving: Serving,
    unmounter: Unmounter,
    reporter: WarningReporter,
}

/// Mounts the volume. No mount remains after an error.
fn make(
    plan: &Plan,
    filesystem: &Filesystem,
    device_mount: Option<DeviceMount>,
    attempt: Arc<MountAttempt>,
) -> Result<MadeMount, Failure> {
    let mountpoint = attempt.mountpoint().to_path_buf();
    let refused = |error: FuseError| refused(&mountpoint, &error);
    let volume = || plan.volume.typed.clone();
    let options = &plan.options.fuse;
    // Before the mount: if a thread cannot be started after it, fusermount3 needs a process to
    // unmount, and there must be as many as there were to mount.
    let reporter = WarningReporter::start(filesystem, volume())
        .map_err(|error| Failure::io("the thread for warnings", &error))?;
    let (filesystem, report) = (filesystem.clone(), report(volume()));
    let mounted = butternut_fuse::mount_attempt(filesystem, attempt, device_mount, options, report)
        .map_err(refused)?;
    let unmounter = mounted.unmounter();
    let serving = mounted.start().map_err(refused)?;
    Ok(MadeMount { serving, unmounter, reporter })
}

/// Starts the control socket. If it cannot be created, the mount works without it.
fn serve_control(
    global: &GlobalArgs,
    what: ServedMount,
    device: Option<(u32, u32)>,
    mountpoint: &Path,
) -> Option<Server> {
    match Server::start(what, device) {
        Ok(server) => Some(server),
        Err(error) => {
            if !global.quiet {
                let (shown, why) = (mountpoint.display(), io_text(&error));
                stderr_line(&format!(
                    "{shown}: note: no control socket for `stats` and `ctl`: {why}"
                ));
            }
            None
        }
    }
}

/// Opens the volume, or the one that send streams make. If it can only be opened read-only, the
/// error says so.
fn open(plan: &Plan, is_stream: bool) -> Result<Filesystem, Failure> {
    let options = &plan.options.volume;
    if is_stream {
        return volume::stream::filesystem(&plan.volume, options);
    }
    volume::check_devices(&plan.volume)?;
    Filesystem::open(&plan.volume.devices, options).map_err(|error| {
        let failure = volume::not_opened(&plan.volume, options, &error);
        let may_help = !failure.has_hint() || hints::is_write_refused(&error);
        let read_only = options.clone().read_only(true);
        if !options.read_only && may_help && volume::open(&plan.volume, &read_only).is_ok() {
            return failure.hint("mount it read-only with -o ro");
        }
        failure
    })
}

/// Returns the callback that reports that the volume has become read-only.
fn report(volume: String) -> Report {
    Box::new(move |error| {
        let text = format!("{volume}: the volume has become read-only: {}", chain(error));
        syslog::log(syslog::CRITICAL, &text);
    })
}

fn completion(ended: Result<(), FuseError>, mountpoint: &Path) -> Result<(), Failure> {
    ended.map_err(|error| Failure::new(mountpoint.display().to_string(), chain(&error)))
}

/// The permissions that a user other than root needs.
const NEEDED: &str = "a mount needs read and write access to /dev/fuse and to the mount point";

/// Describes a mount that the system refuses, with a hint.
fn refused(mountpoint: &Path, error: &FuseError) -> Failure {
    let text = chain(error);
    let failure = Failure::new(mountpoint.display().to_string(), one_line(&text));
    if text.contains("user_allow_other") {
        return failure.hint("root can add `user_allow_other` to /etc/fuse.conf");
    }
    if let FuseError::NoDevice(_) = error {
        return failure.hint("load the fuse module, or make /dev/fuse available in the container");
    }
    // fusermount3 opens /dev/fuse with the permissions of its caller, and reports errors as text.
    if text.contains("/dev/fuse: Permission denied") {
        return failure.hint(NEEDED);
    }
    let FuseError::MountFailed(source) = error else { return failure };
    match Errno::from_io_error(source) {
        Some(Errno::NOENT) => failure.hint("install fuse3, which contains fusermount3"),
        Some(Errno::PERM | Errno::ACCESS) => failure.hint(NEEDED),
        _ => failure,
    }
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// Returns the command line of a mount that another program requests.
pub(super) fn command_line(paths: &[OsString], options: &OsString) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["butternut".into(), "mount".into()];
    if !options.is_empty() {
        arguments.extend(["-o".into(), options.clone()]);
    }
    arguments.push("--".into());
    arguments.extend_from_slice(paths);
    arguments
}
