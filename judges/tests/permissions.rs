//! The permissions of callers on files and directories, case by case as on the kernel's btrfs: on
//! every kind of mount, and in a read-only snapshot. Each known difference is listed with its
//! reason.

use anyhow::{Context, Result, bail, ensure};
use butternut_judges::fuse_mount::FuseMount;
use butternut_judges::kernel_mount::{KernelMount, MountHow};
use butternut_judges::permissions::{self, CALLERS, Case, Flag, objects};
use butternut_judges::{kept, tool, trial};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const BYTES: u64 = 4 << 30;

/// The mount options. All callers use the first mount, some the others.
const MOUNTS: [(&str, &str); 4] = [
    ("kept", "dev,suid,allow_other"),
    ("parallel", "dev,suid,allow_other,parallel_direct"),
    ("uncached", "dev,suid,allow_other,uncached"),
    ("writeback", "dev,suid,allow_other,writeback"),
];
const SOME: [&str; 4] = ["root", "owner", "other", "other-fowner"];

/// A read-only snapshot, and the callers that run all cases in it: nothing there may change.
const SNAPSHOT: &str = "snapshot";
const IN_SNAPSHOT: [&str; 3] = ["root", "owner", "other"];

/// One case that differs.
struct Difference<'a> {
    mount: &'a str,
    caller: &'a str,
    in_snapshot: bool,
    case: &'a Case,
    /// The result on the kernel's btrfs, and on ours.
    kernel: &'a str,
    ours: &'a str,
}

struct Known {
    is: fn(&Difference<'_>) -> bool,
    /// Whether every run must show it. A difference that only the kernel's cached attributes make
    /// is gone when the kernel has dropped the inode from its cache before the comparison.
    always: bool,
    reason: &'static str,
}

impl Difference<'_> {
    fn is_refused(printed: &str) -> bool {
        printed != "ok" && !printed.contains(';')
    }

    fn both_refuse(&self) -> bool {
        Self::is_refused(self.kernel) && Self::is_refused(self.ours)
    }

    /// Whether FUSE in the kernel lacks the check, because it knows neither flags nor read-only
    /// subvolumes.
    fn is_unknown_in_front(&self) -> bool {
        self.in_snapshot || self.case.flag != Flag::None
    }

    fn is_one_of(&self, operations: &[&str]) -> bool {
        operations.contains(&self.case.operation)
    }

    /// Whether only the modification time of a file differs.
    fn is_of_mtime(&self) -> bool {
        let rest = |seen: &str| seen.replace("bytes now ", "bytes 1000000000 ");
        self.kernel.contains(';') && rest(self.kernel) == rest(self.ours)
    }
}

const KNOWN: &[Known] = &[
    Known {
        is: |one| one.both_refuse() && one.is_unknown_in_front(),
        always: true,
        reason: "both refuse with different errors; before FUSE the kernel checks mode bits \
                 first, and it sends requests whose other checks it does not know",
    },
    Known {
        is: |one| one.is_one_of(&["access-write"]) && one.ours == "ok" && one.is_unknown_in_front(),
        always: true,
        reason: "access(2) is answered before FUSE, from mode bits alone",
    },
    Known {
        is: |one| {
            let appends = one.is_one_of(&["append", "append-pwrite"]);
            let is_append_only = one.case.flag == Flag::AppendOnly;
            appends && one.mount == "writeback" && is_append_only && one.is_of_mtime()
        },
        always: false,
        reason: "append-only files bypass the kernel's cache, which shows its cached mtime",
    },
    Known {
        is: |one| {
            let changes = one.is_one_of(&["copy-into-cleared", "punch-append", "zero-append"]);
            let writes_back = one.mount.starts_with("writeback");
            changes && writes_back && one.case.flag == Flag::AppendOnly && one.is_of_mtime()
        },
        always: false,
        reason: "with -o writeback the kernel updates the times of a file before it sends such \
                 a request",
    },
    Known {
        is: |one| {
            let changes = ["allocate", "punch", "zero", "copy-into"];
            let operation = one.case.operation;
            one.caller == "other-fsetid" && changes.iter().any(|word| operation.starts_with(word))
        },
        always: true,
        reason: "the request does not show that the caller has CAP_FSETID, so privileges are \
                 cleared, which is safe",
    },
    Known {
        is: |one| {
            let allocates = one.is_one_of(&["allocate-append", "allocate-keep-append"]);
            allocates && one.case.flag == Flag::AppendOnly && one.case.mode == 0o6777
        },
        always: true,
        reason: "the kernel first sends a request to remove capabilities, which looks like a \
                 program's request, and which an append-only file refuses",
    },
    Known {
        is: |one| {
            let changes = one.is_one_of(&["chown", "chown-own", "chgrp", "chgrp-same"]);
            changes && one.caller == "other-chown" && one.case.mode & 0o6000 != 0
        },
        always: true,
        reason: "with FUSE, CAP_CHOWN is enough if set-user-id is cleared as well, and it is \
                 cleared",
    },
    Known {
        is: |one| one.is_one_of(&["chown-nothing"]),
        always: true,
        reason: "the request for a change of no owner contains nothing on privileges",
    },
    Known {
        is: |one| {
            let writes_back = one.mount.starts_with("writeback");
            one.is_one_of(&["append-mapped"]) && !writes_back && one.ours == "ok"
        },
        always: true,
        reason: "FUSE cannot refuse to map a single file; changes through the mapping are not \
                 written",
    },
    Known {
        is: |one| one.both_refuse() && one.is_one_of(&["destroy-missing", "destroy-missing-id"]),
        always: true,
        reason: "both refuse; a caller that may delete no subvolume learns of no name or id",
    },
    Known {
        is: |one| {
            let calls = ["destroy-", "snapshot-", "subvolume-"];
            let is_call = calls.iter().any(|word| one.case.operation.starts_with(word));
            let is_other = one.caller == "member" || one.caller.starts_with("other");
            one.both_refuse() && is_call && is_other
        },
        always: true,
        reason: "both refuse with different errors: what a caller may do in the directory is \
                 checked first, before its call is queued",
    },
    Known {
        is: |one| one.in_snapshot && one.case.operation.ends_with("acl"),
        always: true,
        reason: "the kernel's btrfs changes ACLs in a read-only snapshot, and should not",
    },
];

fn main() -> ExitCode {
    trial::run(vec![
        trial::trial("as-on-the-kernel", everything_is_as_on_the_kernel),
        trial::trial("raw-flags", flags_cannot_be_set_past_the_checks_of_the_kernel),
    ])
}

/// The results on one filesystem.
struct Seen {
    /// By place and caller, one line for each case.
    results: BTreeMap<(String, String), Vec<String>>,
    states: BTreeMap<String, Vec<String>>,
}

fn everything_is_as_on_the_kernel() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("butternut-judge-may-").tempdir_in(kept::scratch())?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let probe = probe(dir.path())?;
    let base = dir.path().join("base.img");
    make_base(&base)?;
    let image = dir.path().join("used.img");
    tool::copy_sparse(&base, &image)?;
    let how = MountHow::default();
    let mount = KernelMount::new(std::slice::from_ref(&image), &how)?;
    let all: Vec<_> = CALLERS.iter().map(|(name, _)| *name).collect();
    let kernel = try_all(mount.root(), &probe, &all)?;
    mount.unmount()?;
    let mut found = Findings::default();
    for (name, options) in MOUNTS {
        let callers = if name == "kept" { &all[..] } else { &SOME[..] };
        tool::copy_sparse(&base, &image)?;
        let mount = FuseMount::with(&[image.clone().into_os_string()], options)?;
        let ours = try_all(mount.root(), &probe, callers)?;
        mount.unmount()?;
        found.compare(name, &kernel, &ours);
        let checked = tool::words_and_path("check --check-data-csum", &image);
        tool::run("btrfs", &checked)?;
        let name = format!("{name}, mounted again");
        let mount = FuseMount::with(&[image.clone().into_os_string()], options)?;
        let states = describe(mount.root(), callers)?;
        mount.unmount()?;
        found.compare(&name, &kernel, &Seen { results: BTreeMap::new(), states });
    }
    found.judge()
}

/// Copies the probe to a place where every caller can run it.
fn probe(dir: &Path) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("a test runs in target/PROFILE/deps")?;
    let built = profile.join("permission-probe");
    ensure!(built.exists(), "{} is missing: run `cargo build --workspace`", built.display());
    let copy = dir.join("permission-probe");
    std::fs::copy(built, &copy)?;
    Ok(copy)
}

/// Makes the volume for all cases with the kernel.
fn make_base(image: &Path) -> Result<()> {
    std::fs::File::create(image)?.set_len(BYTES)?;
    tool::run("mkfs.btrfs", &tool::words_and_path("-q -K", image))?;
    let how = MountHow { options: "nobarrier", ..MountHow::default() };
    let mount = KernelMount::new(&[image.to_path_buf()], &how)?;
    for (caller, _) in CALLERS {
        objects::make_all(&mount.root().join(caller))?;
    }
    let source = mount.root().join("source");
    tool::run("btrfs", &tool::words_and_path("-q subvolume create", &source))?;
    objects::make_all(&source.join("objects"))?;
    let mut words = tool::words_and_path("-q subvolume snapshot -r", &source);
    words.push(mount.root().join(SNAPSHOT).into_os_string());
    tool::run("btrfs", &words)?;
    mount.unmount()
}

fn try_all(root: &Path, probe: &Path, callers: &[&str]) -> Result<Seen> {
    let mut results = BTreeMap::new();
    for caller in callers {
        let lines = try_as(caller, probe, &root.join(caller))?;
        results.insert((String::new(), (*caller).to_owned()), lines);
    }
    for caller in IN_SNAPSHOT {
        let lines = try_as(caller, probe, &root.join(SNAPSHOT).join("objects"))?;
        results.insert((SNAPSHOT.to_owned(), caller.to_owned()), lines);
    }
    Ok(Seen { results, states: describe(root, callers)? })
}

fn describe(root: &Path, callers: &[&str]) -> Result<BTreeMap<String, Vec<String>>> {
    let mut states = BTreeMap::new();
    for caller in callers {
        states.insert((*caller).to_owned(), objects::describe_all(&root.join(caller))?);
    }
    let objects = root.join(SNAPSHOT).join("objects");
    states.insert(SNAPSHOT.to_owned(), objects::describe_all(&objects)?);
    Ok(states)
}

fn try_as(caller: &str, probe: &Path, dir: &Path) -> Result<Vec<String>> {
    let (_, arguments) = CALLERS.iter().find(|(name, _)| *name == caller).context("a caller")?;
    let output = Command::new("setpriv")
        .args(permissions::arguments(arguments))
        .arg(probe)
        .arg(dir)
        .stderr(Stdio::inherit())
        .output()
        .context("setpriv")?;
    ensure!(output.status.success(), "{caller}: {}", output.status);
    let lines: Vec<_> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    ensure!(lines.len() == permissions::cases().len(), "{caller}: {} lines", lines.len());
    Ok(lines)
}

#[derive(Default)]
struct Findings {
    new: BTreeMap<String, Vec<String>>,
    used: Vec<usize>,
}

impl Findings {
    fn compare(&mut self, mount: &str, kernel: &Seen, ours: &Seen) {
        let cases = permissions::cases();
        let results = ours.results.iter().map(|((place, caller), lines)| {
            (!place.is_empty(), caller, lines, &kernel.results[&(place.clone(), caller.clone())])
        });
        let states = ours
            .states
            .iter()
            .map(|(caller, lines)| (caller == SNAPSHOT, caller, lines, &kernel.states[caller]));
        for (in_snapshot, caller, ours, kernel) in results.chain(states) {
            for ((case, kernel), ours) in cases.iter().zip(kernel).zip(ours) {
                if kernel != ours {
                    let one = Difference { mount, caller, in_snapshot, case, kernel, ours };
                    self.add(&one);
                }
            }
        }
    }

    fn add(&mut self, one: &Difference<'_>) {
        if let Some(known) = KNOWN.iter().position(|known| (known.is)(one)) {
            self.used.push(known);
            return;
        }
        let Difference { mount, caller, in_snapshot, case, kernel, ours } = one;
        let place = if *in_snapshot { "in a snapshot" } else { "" };
        let what = format!(
            "{} {:?} {place}\n  kernel: {kernel}\n  ours:   {ours}",
            case.operation, case.flag
        );
        let which = format!("{mount} {caller} {:?} {:o}", case.object, case.mode);
        self.new.entry(what).or_default().push(which);
    }

    fn judge(self) -> Result<()> {
        for (at, known) in KNOWN.iter().enumerate() {
            ensure!(
                !known.always || self.used.contains(&at),
                "a listed difference no longer occurs: {}",
                known.reason
            );
        }
        if self.new.is_empty() {
            return Ok(());
        }
        let shown = self.new.iter().map(|(what, which)| {
            let some = which[..which.len().min(3)].join(", ");
            format!("{what}\n  {} times: {some}\n", which.len())
        });
        let text: String = shown.collect();
        bail!("{} differences:\n{text}", self.new.len())
    }
}

/// The kernel's VFS handles the 64-bit number of `FS_IOC_SETFLAGS` only, and checks the caller; it
/// passes the 32-bit number on.
fn flags_cannot_be_set_past_the_checks_of_the_kernel() -> Result<()> {
    for (_, options) in MOUNTS {
        let mut volume = butternut_judges::our_volume::OurVolume::new(kept::scratch(), options)?;
        let root = butternut_judges::subjects::Mounted::root(&volume)?.to_path_buf();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755))?;
        let path = root.join("file");
        std::fs::write(&path, b"of root")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644))?;
        // The immutable flag in both forms of the call.
        for (number, flag) in [("0x40046602", 0x10), ("0x40086602", 0x10), ("0x401c5820", 8)] {
            let script = format!(
                "open(F, '<', $ARGV[0]) or die; my $v = pack('L8', {flag}, 0, 0, 0, 0, 0, 0, 0); \
                 print ioctl(F, {number}, $v) ? 'done' : 'refused'"
            );
            for caller in ["--reuid=1002 --regid=1002 --clear-groups", ""] {
                let mut args: Vec<_> = caller.split_whitespace().map(str::to_owned).collect();
                args.extend(["perl".to_owned(), "-e".to_owned(), script.clone()]);
                args.push(path.display().to_string());
                let printed = tool::text("setpriv", &args)?;
                let want =
                    if caller.is_empty() && number != "0x40046602" { "done" } else { "refused" };
                ensure!(
                    printed == want,
                    "{options}: {number} as {caller:?}: {printed}, not {want}"
                );
                let flags = rustix::fs::ioctl_getflags(std::fs::File::open(&path)?)?;
                let is_fixed = flags.contains(rustix::fs::IFlags::IMMUTABLE);
                ensure!(
                    is_fixed == (want == "done"),
                    "{options}: {number} as {caller:?}: {flags:?}"
                );
                if is_fixed {
                    tool::run("chattr", &tool::words_and_path("-i", &path))?;
                }
            }
        }
        volume.unmount()?;
    }
    Ok(())
}
