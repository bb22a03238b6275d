//! The setting of a test: a directory of its own for images, work files and records, and the
//! program that runs in it.

use butternut_lab::record::Record;
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for an event, after which a test fails.
const EVENT_WAIT: Duration = Duration::from_mins(1);

/// Size of images: the smallest that mkfs.xfs accepts, and some.
pub(crate) const IMAGE: &str = "320M";

/// One short job on a small file.
pub(crate) const SUITE: &str = r#"
name = "tiny"
about = "one short job on a small file"
targets = ["raw"]
seconds = 1
variables = { size = "4M" }

[[scenario]]
name = "write"
over = { block = ["4k"] }
metrics = ["iops", "mbps", "p99", "cpu"]

[scenario.job.writer]
rw = "randwrite"
bs = "{block}"
iodepth = 4
norandommap = true
size = "{size}"
file = "data"
"#;

/// A directory for one test.
pub(crate) struct Setting {
    dir: tempfile::TempDir,
}

/// Returns whether tests that need root and the kernel's filesystems run. Reports one that does
/// not.
pub(crate) fn kernel_tests_enabled(test: &str) -> bool {
    let is_disabled = std::env::var_os("BUTTERNUT_NO_KERNEL").is_some();
    if is_disabled {
        eprintln!("left out for BUTTERNUT_NO_KERNEL: {test}");
    }
    !is_disabled
}

impl Setting {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("butternut-lab-test-").tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        let setting = Self { dir };
        setting.write("tiny.toml", SUITE);
        setting
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Makes a sparse file.
    pub(crate) fn image(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
        path
    }

    /// Returns the command in this directory; `run` gets the options of every test.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_butternut-lab"));
        command.current_dir(self.dir.path()).env("TMPDIR", self.path("tmp"));
        command.args(words.split_whitespace());
        if words.starts_with("run") {
            command.args(["--history", "history", "--allow-debug", "--sparse"]);
        }
        command
    }

    pub(crate) fn output(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// Starts `fio --server` on a socket.
    pub(crate) fn fio_server(&self, name: &str) -> FioServer {
        let socket = self.path(name);
        let child = Command::new("fio")
            .arg(format!("--server=sock:{}", socket.display()))
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.wait_until("the server listens", || socket.exists());
        FioServer { child, socket }
    }

    /// Runs the command, which must succeed, and returns its output.
    #[track_caller]
    pub(crate) fn succeed(&self, words: &str) -> String {
        let output = self.output(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {}: {errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs the command, which must fail, and returns its errors.
    #[track_caller]
    pub(crate) fn fail(&self, words: &str) -> String {
        errors_of_failure(words, &self.output(words))
    }

    /// Starts the command; its errors go to the file `errors`.
    pub(crate) fn start(&self, words: &str) -> Child {
        let errors = fs::File::create(self.path("errors")).unwrap();
        let mut command = self.command(words);
        command.stdout(Stdio::null()).stderr(errors);
        command.spawn().unwrap()
    }

    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.path("errors")).unwrap()
    }

    /// Returns the paths of the records.
    pub(crate) fn records(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("history")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Returns the record of the only run.
    #[track_caller]
    pub(crate) fn record(&self) -> Record {
        let records = self.records();
        assert_eq!(records.len(), 1, "{records:?}");
        Record::read(&records[0]).unwrap()
    }

    /// Checks that nothing of a run is left: no mount, loop device, process, control group or file.
    #[track_caller]
    pub(crate) fn check_clean(&self) {
        self.wait_until("nothing is left behind", || self.left_behind().is_empty());
    }

    fn left_behind(&self) -> Vec<String> {
        let here = self.dir.path().display().to_string();
        let mut left = Vec::new();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        left.extend(mounts.lines().filter(|line| line.contains(&here)).map(str::to_owned));
        let loops = shell("losetup --list --noheadings --output NAME,BACK-FILE");
        left.extend(loops.lines().filter(|line| line.contains(&here)).map(str::to_owned));
        left.extend(self.processes("").into_iter().map(|pid| format!("process {pid}")));
        let work = fs::read_dir(self.path("tmp")).unwrap();
        left.extend(work.map(|entry| entry.unwrap().path().display().to_string()));
        left
    }

    /// Returns the processes whose command line names this directory and contains `text`.
    pub(crate) fn processes(&self, text: &str) -> Vec<u32> {
        let here = self.path("tmp").display().to_string();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            // The watchers of mounts and loop devices end by themselves.
            if line.contains(&here) && line.contains(text) && !line.contains(" undo ") {
                found.push(pid);
            }
        }
        found
    }

    /// Waits for the fio of the measurement, not that of the layout, and returns its process.
    #[track_caller]
    pub(crate) fn wait_for_job(&self) -> u32 {
        // One that is seen may end before it is looked at again.
        let job = Cell::new(None);
        self.wait_until("a job runs", || {
            job.set(self.jobs().first().copied());
            job.get().is_some()
        });
        job.get().unwrap()
    }

    fn jobs(&self) -> Vec<u32> {
        let is_fio = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "fio"
        };
        self.processes("job.fio").into_iter().filter(is_fio).collect()
    }

    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            let left = self.left_behind();
            assert!(began.elapsed() < EVENT_WAIT, "waiting until {what}: {left:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process of `fio --server`, killed when it is dropped.
pub(crate) struct FioServer {
    child: Child,
    socket: PathBuf,
}

impl FioServer {
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for FioServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// [`IMAGE`] in bytes.
const IMAGE_BYTES: u64 = 320 << 20;

#[track_caller]
pub(crate) fn errors_of_failure(what: &str, output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{what} did not fail: {errors}");
    errors
}

/// Runs a line of shell, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn shell(line: &str) -> String {
    let output = Command::new("sh").args(["-ec", line]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Sends a signal to a process.
#[track_caller]
pub(crate) fn signal(name: &str, pid: u32) {
    shell(&format!("kill -{name} {pid}"));
}

/// Returns the bytes of a file, as a checksum.
pub(crate) fn checksum(path: &Path) -> String {
    let output = Command::new("sha256sum").arg::<&OsStr>(path.as_ref()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap().to_owned()
}
