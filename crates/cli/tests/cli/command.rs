//! Runs the program under test, and other programs.

use std::ffi::OsStr;
use std::process::{Command, Output};

/// Status and output of a program.
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) bytes: Vec<u8>,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

impl CommandOutput {
    /// Returns the stdout of a program that succeeded without messages.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "stdout: {}", self.out);
        self.out
    }

    /// Returns the stderr of a program that failed with status 1 and printed nothing.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        self.failed_with(1)
    }

    /// As [`Self::failure`], of a usage error.
    #[track_caller]
    pub(crate) fn usage(self) -> String {
        self.failed_with(2)
    }

    #[track_caller]
    fn failed_with(self, status: i32) -> String {
        assert_eq!((self.code, self.out.as_str()), (Some(status), ""), "stderr: {}", self.err);
        self.err.trim_end().to_owned()
    }
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_butternut"));
    command.env("TZ", "UTC");
    command
}

pub(crate) fn butternut<S: AsRef<OsStr>>(words: &[S]) -> CommandOutput {
    command().args(words).output().unwrap().into()
}

/// Runs another program, which must succeed.
#[track_caller]
pub(crate) fn run(program: &str, words: &[&OsStr]) -> String {
    let output = Command::new(program).env("TZ", "UTC").args(words).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; install it"));
    let ran = CommandOutput::from(output);
    assert_eq!(ran.code, Some(0), "{program} {words:?}: {}{}", ran.out, ran.err);
    ran.out
}

#[track_caller]
pub(crate) fn shell(script: &str) -> String {
    let script = format!("{}{script}", butternut_undo::UMOUNT_FUNCTION);
    run("sh", &["-ec".as_ref(), script.as_ref()])
}

/// Returns a command line that runs a script in its own mount namespace. The namespace begins with
/// copies of the mounts of other tests, which would keep those mounts alive, so the script first
/// detaches them.
pub(crate) fn in_mount_namespace(script: &str) -> String {
    // The kernel's own mounts of other tests, too: a loop device is busy while a namespace has one.
    const WITHOUT_OTHERS: &str = r#"
        grep -E " - (fuse(blk)?.butternut |[a-z0-9]+ /dev/loop)" /proc/self/mountinfo |
            cut -d " " -f 5 | grep -E "^(/tmp|/var/tmp|/dev/shm)/" | while read -r m; do
                umount -l "$m" || true
            done
    "#;
    let script = format!("{WITHOUT_OTHERS}{script}").replace('\'', "'\\''");
    format!("unshare --mount --propagation private sh -ec '{script}'")
}

/// Runs a bash script on a mount point, in which `$M` is the mount point and `$B` the command.
/// Returns what it has printed. `try` prints a command, its status and its output, without the
/// paths of both; `user` runs a command as another user.
pub(crate) fn script_on_mount(
    mount_point: &str,
    script: &str,
    variables: &[(&str, &str)],
) -> String {
    const BEGIN: &str = r#"
exec 2>&1
cd "$M"
try() {
    out="$("$@" 2>&1)"
    status=$?
    said="$*: $status $out"
    said="${said//$B/butternut}"
    printf '%s\n' "${said//$M/M}"
}
user() { setpriv --reuid=12345 --regid=12345 --clear-groups "$@"; }
"#;
    let mut bash = Command::new("bash");
    bash.arg("-c").arg([BEGIN, script].concat()).env("M", mount_point);
    bash.env("B", env!("CARGO_BIN_EXE_butternut")).envs(variables.iter().copied());
    String::from_utf8_lossy(&bash.output().unwrap().stdout).into_owned()
}
