//! `mount`: serves a volume through FUSE.
//!
//! 1. Unless --foreground is given, the command returns when the mount serves: it starts itself
//!    again as the daemon, with a pipe on which the daemon says so. No process is forked that has
//!    threads.
//! 2. Whoever starts it gets one line on stderr and a status that is not 0 where it cannot serve.
//! 3. The daemon has no descriptor of its caller's but the standard three, and those only until it
//!    serves: a lock or a pipe of the caller's must not live as long as the mount.
//! 4. Signals to end are the matter of [`ending`].

mod ending;
mod further;
mod log;
pub(super) mod options;
mod remount;
mod settled;
mod troubles;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use butternut::{Filesystem, MountOptions};
use butternut_fuse::{FuseError, Report, Serving};
use butternut_sys::descriptors;
use butternut_sys::signal::EndSignals;
use rustix::io::Errno;

use crate::control::server::{Served, Server};
use crate::failure::{Done, Failure, Outcome, chain, plain};
use crate::flags::{GlobalArgs, MountArgs};
use crate::options as volume_options;
use crate::output::{Output, json, say};
use crate::volume_arg::VolumeArg;
use options::Meaning;
use troubles::Reporter;

/// Fewer threads leave the devices idle while answers are copied to the kernel.
const THREADS_MIN: usize = 4;

/// What the daemon writes when it serves.
const READY: &[u8] = b"ready\n";

/// What is to be mounted where.
struct Plan {
    volume: VolumeArg,
    mountpoint: PathBuf,
    meaning: Meaning,
}

pub(crate) fn run(global: &GlobalArgs, args: &MountArgs, out: &mut Output) -> Outcome {
    if let [.., mountpoint] = &args.places[..]
        && remount::is_meant(&args.options)
    {
        return remount::run(Path::new(mountpoint), &args.options);
    }
    let plan = Plan::of(global, args)?;
    if !args.ready && further::join(&plan)? {
        return joined(global, &plan, out);
    }
    if args.foreground || args.ready {
        serve(global, args, plan)
    } else {
        start(global, args, &plan, out)
    }
}

impl Plan {
    fn of(global: &GlobalArgs, args: &MountArgs) -> Result<Self, Failure> {
        let Some((mountpoint, words)) = args.places.split_last() else {
            return Err(Failure::new("mount", "no volume and mount point"));
        };
        let mountpoint = PathBuf::from(mountpoint);
        if words.is_empty() {
            return Err(Failure::new("mount", "no volume before the mount point"));
        }
        let mut volume = volume_options::volume(words)?;
        let mut meaning = Meaning::of(&args.options)?;
        meaning.place(&mut volume)?;
        meaning.volume.degraded |= global.degraded;
        meaning.fuse.source.clone_from(&volume.typed);
        let cores = thread::available_parallelism().map_or(1, NonZero::get).max(THREADS_MIN);
        if let Some(threads) = args.threads {
            meaning.take(format!("threads={threads}").as_bytes())?;
        }
        meaning.fuse.threads = meaning.threads.unwrap_or(cores.min(options::THREADS_MAX));
        let shown = mountpoint.display().to_string();
        let meta = std::fs::metadata(&mountpoint).map_err(|error| {
            let failure = Failure::io(&*shown, &error);
            match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => failure.cure("make the directory first"),
                Some(Errno::NOTCONN) => {
                    failure.cure("a dead mount is still there: `butternut umount` takes it away")
                }
                _ => failure,
            }
        })?;
        if !meta.is_dir() {
            return Err(Failure::new(shown, "is not a directory")
                .cure("the last argument is the mount point, before it come the devices"));
        }
        if mountpoint.canonicalize().is_ok_and(|place| place == Path::new("/")) {
            return Err(Failure::new(shown, "is the root of the system, where nothing is mounted")
                .cure("name another directory; `chroot` makes it a root"));
        }
        Ok(Self { volume, mountpoint, meaning })
    }
}

/// Reports a mount that another process serves already.
fn joined(global: &GlobalArgs, plan: &Plan, out: &mut Output) -> Outcome {
    if global.json {
        let mountpoint = plan.mountpoint.as_os_str().as_encoded_bytes();
        json::document(out, json::Object::new().name("mountpoint", mountpoint))?;
    }
    Ok(Done::Well)
}

/// Starts the daemon and waits until it serves, or has said why it cannot.
fn start(global: &GlobalArgs, args: &MountArgs, plan: &Plan, out: &mut Output) -> Outcome {
    let failed = |error: &io::Error| Failure::io("the daemon", error);
    // By its own path rather than /proc/self/exe, so that ps shows a name.
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
    command.arg("--").args(&args.places);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    descriptors::close_on_exec().map_err(|errno| failed(&errno.into()))?;
    let mut daemon = command.spawn().map_err(|error| failed(&error))?;
    let mut said = Vec::new();
    if let Some(mut pipe) = daemon.stdout.take() {
        pipe.read_to_end(&mut said).map_err(|error| failed(&error))?;
    }
    if said == READY {
        if global.json {
            let mountpoint = plan.mountpoint.as_os_str().as_encoded_bytes();
            let object = json::Object::new().name("mountpoint", mountpoint);
            json::document(out, object.put("process", daemon.id()))?;
        }
        return Ok(Done::Well);
    }
    // It has said why on the stderr that it shares with us.
    let status = daemon.wait().map_err(|error| failed(&error))?;
    match status.code() {
        Some(_) => Ok(Done::WithFailures),
        None => Err(Failure::new("the daemon", format!("ended by a {status}"))),
    }
}

/// Serves until the mount is gone.
fn serve(global: &GlobalArgs, args: &MountArgs, mut plan: Plan) -> Outcome {
    if args.ready {
        // Fails only for a leader of processes, which a daemon's child is not.
        rustix::process::setsid().map(drop).unwrap_or_default();
    }
    let signals = EndSignals::block()
        .map_err(|errno| Failure::io("signals", &io::Error::from_raw_os_error(errno.0)))?;
    let filesystem = open(&plan)?;
    if !global.quiet {
        for notice in filesystem.notices() {
            say(&format!("{}: note: {notice}", plan.volume.typed));
        }
    }
    let mountpoint = plan.mountpoint.canonicalize().unwrap_or(plan.mountpoint);
    let report = report(plan.volume.typed.clone());
    // The mount may hide its devices.
    let devices = further::identities(&plan.volume);
    let settings = settled::settings(&plan.meaning);
    plan.meaning.fuse.whole = further::from_the_top(&filesystem);
    let refused = |error: FuseError| refused(&mountpoint, &error);
    let mounted =
        butternut_fuse::mount(filesystem.clone(), &mountpoint, &plan.meaning.fuse, report)
            .map_err(refused)?;
    let reporter = Reporter::start(&filesystem, plan.volume.typed.clone());
    let unmounter = mounted.unmounter();
    let serving = mounted.start().map_err(refused)?;
    let served = Served { filesystem, devices, settings, whole: serving.whole() };
    let control = serve_control(global, served, serving.device(), &mountpoint);
    if args.ready {
        detach_from_parent().map_err(|error| Failure::io("the daemon's parent", &error))?;
    } else if !global.quiet {
        say(&format!(
            "{}: serves (end it with `butternut umount`, or Ctrl-C)",
            mountpoint.display()
        ));
    }
    ending::end_on_signal(signals, unmounter, mountpoint.clone());
    let finished = finish(serving, &mountpoint);
    drop(reporter);
    drop(control);
    finished
}

/// The control socket. A mount without one is a mount.
fn serve_control(
    global: &GlobalArgs,
    what: Served,
    device: Option<(u32, u32)>,
    mountpoint: &Path,
) -> Option<Server> {
    match Server::start(what, device) {
        Ok(server) => Some(server),
        Err(error) => {
            if !global.quiet {
                let (shown, why) = (mountpoint.display(), plain(&error));
                say(&format!("{shown}: note: no socket for stats and ctl: {why}"));
            }
            None
        }
    }
}

/// Opens the volume. What cannot be written is refused, with the way to look at it, if there is.
fn open(plan: &Plan) -> Result<Filesystem, Failure> {
    let options = &plan.meaning.volume;
    let failure = match volume_options::open(&plan.volume, options) {
        Err(failure) if !options.read_only => failure,
        opened => return opened,
    };
    let to_look = MountOptions { read_only: true, ..options.clone() };
    if !failure.has_cure() && volume_options::open(&plan.volume, &to_look).is_ok() {
        return Err(failure.cure("with -o ro it can be looked at"));
    }
    Err(failure)
}

/// Says that writing has failed for good.
fn report(volume: String) -> Report {
    Box::new(move |error| {
        let text = format!("{volume}: the volume is read-only from now on: {}", chain(error));
        log::tell(log::CRITICAL, &text);
    })
}

fn finish(serving: Serving, mountpoint: &Path) -> Outcome {
    serving
        .wait()
        .map_err(|error| Failure::new(mountpoint.display().to_string(), chain(&error)))?;
    Ok(Done::Well)
}

/// Says that the mount serves, and lets go of the terminal and the working directory.
fn detach_from_parent() -> io::Result<()> {
    let nowhere = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    io::stdout().write_all(READY)?;
    io::stdout().flush()?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(rustix::process::chdir("/")?)
}

/// What a mount takes of a user other than root.
const NEEDED: &str = "a mount takes read and write access to /dev/fuse and to the mount point";

/// A mount that the system refuses, with what to do about it.
fn refused(mountpoint: &Path, error: &FuseError) -> Failure {
    let text = chain(error);
    let failure = Failure::new(mountpoint.display().to_string(), one_line(&text));
    if text.contains("user_allow_other") {
        return failure.cure("root can add `user_allow_other` to /etc/fuse.conf");
    }
    if let FuseError::NoFuse(_) = error {
        return failure.cure("load the fuse module, or give the container /dev/fuse");
    }
    // fusermount3 opens the device with the rights of its caller, and says so in words.
    if text.contains("/dev/fuse: Permission denied") {
        return failure.cure(NEEDED);
    }
    let FuseError::Refused(source) = error else { return failure };
    match Errno::from_io_error(source) {
        Some(Errno::NOENT) => failure.cure("install fuse3, which has fusermount3"),
        Some(Errno::PERM | Errno::ACCESS) => failure.cure(NEEDED),
        _ => failure,
    }
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// The words of a mount that another program starts.
pub(super) fn words(places: &[OsString], options: &OsString) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["butternut".into(), "mount".into()];
    if !options.is_empty() {
        words.extend(["-o".into(), options.clone()]);
    }
    words.push("--".into());
    words.extend_from_slice(places);
    words
}
