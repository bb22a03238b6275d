//! `mount`: mounts a volume through FUSE.
//!
//! 1. Without --foreground, the command starts the program again as a daemon, and returns when the
//!    daemon reports over a pipe that the volume is mounted. The daemon is a new program (exec),
//!    not a fork of a process with threads.
//! 2. If the volume cannot be mounted, the command prints one line to stderr and exits with a
//!    status other than 0.
//! 3. The daemon inherits only the three standard descriptors, and closes those when the volume is
//!    mounted: a lock or pipe of the caller must not stay open as long as the mount.
//! 4. [`signals`] describes how signals end the mount.
//! 5. No thread that serves, commits or ends the mount writes to stderr: [`reporter`] does. A pipe
//!    that nothing reads delays the mount and its end by a bounded time.

mod fixed_options;
mod join;
pub(crate) mod mount8;
pub(super) mod options;
mod remount;
mod signals;
mod syslog;
mod warnings;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use butternut::Filesystem;
use butternut_fuse::{FuseError, Report};
use butternut_sys::descriptors;
use butternut_sys::signal::EndSignals;
use rustix::io::Errno;

use crate::args::{GlobalArgs, MountArgs};
use crate::control::server::{ServedMount, Server};
use crate::failure::{Completion, Failure, Outcome, chain, hints, io_text};
use crate::output::{Output, json, reporter, stderr_line};
use crate::volume;
use crate::volume::arg::VolumeArg;
use options::ParsedOptions;
use signals::SignalThread;
use warnings::WarningReporter;

/// With fewer threads, devices are idle while replies are copied to the kernel.
const THREADS_MIN: usize = 4;

/// The daemon writes this to its stdout when the volume is mounted.
const READY: &[u8] = b"ready\n";

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
        return remount::run(Path::new(mountpoint), &args.options);
    }
    let plan = Plan::of(global, args)?;
    if !args.ready && join::mount_served(&plan)? {
        return report_joined(global, &plan, out);
    }
    if args.foreground || args.ready {
        serve(global, args, plan)
    } else {
        start(global, args, &plan, out)
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
        options.fuse.source.clone_from(&volume.typed);
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

/// Prints the result of a mount that an existing process serves.
fn report_joined(global: &GlobalArgs, plan: &Plan, out: &mut Output) -> Outcome {
    if global.json {
        let mountpoint = plan.mountpoint.as_os_str().as_encoded_bytes();
        json::document(out, json::Object::new().name("mountpoint", mountpoint))?;
    }
    Ok(Completion::Success)
}

/// Starts the daemon, and waits until the volume is mounted or the daemon has failed.
fn start(global: &GlobalArgs, args: &MountArgs, plan: &Plan, out: &mut Output) -> Outcome {
    let failed = |error: &io::Error| Failure::io("the daemon", error);
    // The path of the program rather than /proc/self/exe, so that ps(1) shows its name.
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.arg0("butternut").arg("mount").arg("--ready");
    for (given, flag) in
        [(global.verbose, "--verbose"), (global.quiet, "--quiet"), (global.degraded, "--degraded")]
    {
        if given {
            command.arg(flag);
        }
    }
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    if let Some(threads) = args.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    command.arg("--").args(&args.paths);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    descriptors::close_on_exec().map_err(|errno| failed(&errno.into()))?;
    let mut daemon = command.spawn().map_err(|error| failed(&error))?;
    let mut output = Vec::new();
    if let Some(mut pipe) = daemon.stdout.take() {
        pipe.read_to_end(&mut output).map_err(|error| failed(&error))?;
    }
    if output == READY {
        if global.json {
            let mountpoint = plan.mountpoint.as_os_str().as_encoded_bytes();
            let object = json::Object::new().name("mountpoint", mountpoint);
            json::document(out, object.put("process", daemon.id()))?;
        }
        return Ok(Completion::Success);
    }
    // The daemon has reported the failure on the inherited stderr.
    let status = daemon.wait().map_err(|error| failed(&error))?;
    match status.code() {
        Some(_) => Ok(Completion::PartialFailure),
        None => Err(Failure::new("the daemon", format!("was terminated by {status}"))),
    }
}

/// Serves the mount until it is unmounted.
fn serve(global: &GlobalArgs, args: &MountArgs, mut plan: Plan) -> Outcome {
    if args.ready {
        // Fails only for a process group leader, which a spawned child is not.
        rustix::process::setsid().map(drop).unwrap_or_default();
    }
    let signals = EndSignals::block()
        .map_err(|errno| Failure::io("signals", &io::Error::from_raw_os_error(errno.0)))?;
    reporter::start().map_err(|error| Failure::io("the reporter thread", &error))?;
    let signals = SignalThread::start(signals, plan.volume.typed.clone());
    let filesystem = open(&plan)?;
    signals.volume_is_open();
    if !global.quiet {
        for notice in filesystem.notices() {
            stderr_line(&format!("{}: note: {notice}", plan.volume.typed));
        }
    }
    let mountpoint = plan.mountpoint.canonicalize().unwrap_or(plan.mountpoint);
    let report = report(plan.volume.typed.clone());
    // Read before the mount, which may hide the paths of the devices.
    let devices = join::device_identities(&plan.volume);
    let settings = fixed_options::values(&plan.options);
    plan.options.fuse.top_level = join::top_level_path(&filesystem);
    let refused = |error: FuseError| refused(&mountpoint, &error);
    let mounted =
        butternut_fuse::mount(filesystem.clone(), &mountpoint, &plan.options.fuse, report)
            .map_err(refused)?;
    let reporter = WarningReporter::start(&filesystem, plan.volume.typed.clone());
    let unmounter = mounted.unmounter();
    let serving = mounted.start().map_err(refused)?;
    signals.unmount_on_signal(unmounter, mountpoint.clone());
    let served = ServedMount { filesystem, devices, settings, whole: serving.detached_mount() };
    let control = serve_control(global, served, serving.device(), &mountpoint);
    if args.ready {
        detach_from_parent().map_err(|error| Failure::io("the daemon's parent", &error))?;
    } else if !global.quiet {
        stderr_line(&format!(
            "{}: mounted (unmount it with `butternut umount` or Ctrl-C)",
            mountpoint.display()
        ));
    }
    let ended = serving.wait();
    if let Err(FuseError::Aborted) = ended {
        // No thread is joined, since any thread may be blocked on a device.
        if let Some(control) = control {
            control.abandon_thread();
        }
        std::process::exit(signals::ABORTED);
    }
    drop(reporter);
    drop(control);
    completion(ended, &mountpoint)
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

/// Opens the volume. If it can only be opened read-only, the error says so.
fn open(plan: &Plan) -> Result<Filesystem, Failure> {
    let options = &plan.options.volume;
    volume::check_devices(&plan.volume)?;
    Filesystem::open(&plan.volume.devices, options).map_err(|error| {
        let failure = Failure::of(plan.volume.typed.clone(), &error);
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

fn completion(ended: Result<(), FuseError>, mountpoint: &Path) -> Outcome {
    ended.map_err(|error| Failure::new(mountpoint.display().to_string(), chain(&error)))?;
    Ok(Completion::Success)
}

/// Reports that the volume is mounted, and releases the terminal and the working directory.
fn detach_from_parent() -> io::Result<()> {
    // The caller of the command sees the messages so far.
    reporter::flush();
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(rustix::process::chdir("/")?)
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
