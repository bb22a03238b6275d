//! `top` on a real mount: one frame as text, and the live view in a terminal, which is restored.

use super::setting::{Setting, kernel_tests_enabled, shell};
use butternut_undo::MountGuard;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// What a terminal gets when the alternate screen is entered and left.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// A mounted volume.
struct Mounted {
    // Dropped before its directory.
    _guard: MountGuard,
    setting: Setting,
    program: PathBuf,
    path: PathBuf,
}

impl Mounted {
    fn new() -> Self {
        let setting = Setting::new();
        let lab = PathBuf::from(env!("CARGO_BIN_EXE_butternut-lab"));
        let program = lab.with_file_name("butternut");
        assert!(program.is_file(), "{} is not built", program.display());
        let (image, path) = (setting.image("own.img"), setting.path("mount"));
        std::fs::create_dir(&path).unwrap();
        let guard = MountGuard::before_mount(&path).unwrap();
        let (own, shown) = (program.display(), path.display());
        shell(&format!("{own} --quiet mkfs {}", image.display()));
        shell(&format!("{own} --quiet mount {} {shown}", image.display()));
        Self { _guard: guard, setting, program, path }
    }

    /// Starts the view in a terminal of its own; its output goes to the file `screen`.
    fn start(&self) -> Screen {
        let lab = env!("CARGO_BIN_EXE_butternut-lab");
        // The terminal of `script` has no size of its own here.
        let size = "stty rows 40 columns 100";
        let line = format!("{size} && exec {lab} top -i 0.1 {}", self.path.display());
        let child = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &line])
            .arg(self.setting.path("screen"))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Screen(child)
    }

    fn screen(&self) -> String {
        let bytes = std::fs::read(self.setting.path("screen")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the process of the view.
    fn view(&self) -> u32 {
        let pids =
            shell(&format!("pgrep --full 'butternut-lab top -i 0.1 {}'", self.path.display()));
        let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let mut pids = pids.lines().filter_map(|pid| pid.parse().ok());
        pids.find(|pid| name(pid).is_ok_and(|name| name.trim() == "butternut-lab")).unwrap()
    }
}

/// A terminal. The view in it gets SIGHUP when the terminal is dropped.
struct Screen(Child);

impl Drop for Screen {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let (own, shown) = (self.program.display(), self.path.display());
        drop(Command::new("sh").args(["-c", &format!("{own} --quiet umount {shown}")]).status());
    }
}

#[test]
fn a_frame_of_a_mount_has_the_numbers_of_its_stats() {
    if !kernel_tests_enabled("a_frame_of_a_mount_has_the_numbers_of_its_stats") {
        return;
    }
    let mounted = Mounted::new();
    std::fs::write(mounted.path.join("file"), vec![7; 1 << 20]).unwrap();
    shell(&format!("sync --file-system {}", mounted.path.display()));
    let shown = mounted.path.display();
    let frame = mounted.setting.succeed(&format!("top --once -i 0.1 {shown}"));
    assert!(frame.starts_with(&format!("{shown} (writable): ")), "{frame}");
    for part in ["in flight", "cached_write", "page cache", "writeback: ", " of ", "own.img"] {
        assert!(frame.contains(part), "{part}: {frame}");
    }
    assert!(!frame.contains('\u{1b}') && frame.lines().all(|line| line.trim_end() == line));
    let errors = mounted.setting.fail("top --once tmp");
    assert!(errors.contains("no butternut mount at tmp"), "{errors}");
    let errors = mounted.setting.fail(&format!("top --interval 0 {shown}"));
    assert!(errors.contains("want seconds from 0.1 to 3600"), "{errors}");
}

#[test]
fn a_terminal_is_restored_by_the_key_and_by_a_signal() {
    if !kernel_tests_enabled("a_terminal_is_restored_by_the_key_and_by_a_signal") {
        return;
    }
    let mounted = Mounted::new();
    for ends_by_key in [true, false] {
        drop(std::fs::remove_file(mounted.setting.path("screen")));
        let mut terminal = mounted.start();
        let is_shown = || mounted.screen().contains("scroll");
        wait_until(is_shown, || mounted.screen());
        assert!(mounted.screen().contains(ENTER));
        if ends_by_key {
            use std::io::Write;
            terminal.0.stdin.as_mut().unwrap().write_all(b"q").unwrap();
        } else {
            super::setting::signal("TERM", mounted.view());
        }
        let status = terminal.0.wait().unwrap();
        assert_eq!(status.success(), ends_by_key, "{status}");
        assert!(mounted.screen().contains(LEAVE), "{}", mounted.screen());
    }
}

/// The view of a mount that does not respond: its program is one of the test, which waits.
#[test]
fn a_view_without_an_answer_ends_by_a_signal() {
    let setting = Setting::new();
    let script = "#!/bin/sh\necho $$ > waits.new && mv waits.new waits && exec sleep 100\n";
    setting.write("program", script);
    shell(&format!("chmod 755 {}", setting.path("program").display()));
    for mode in ["", " --once"] {
        drop(std::fs::remove_file(setting.path("waits")));
        let program = setting.path("program");
        let mut view = setting.start(&format!("top{mode} --butternut {} tmp", program.display()));
        let is_requested = || setting.path("waits").exists();
        wait_until(is_requested, || setting.errors());
        super::setting::signal("TERM", view.id());
        let began = std::time::Instant::now();
        let status = loop {
            if let Some(status) = view.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed().as_secs() < 60, "{mode}: the signal was not noticed");
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        let waiting = std::fs::read_to_string(setting.path("waits")).unwrap();
        super::setting::signal("KILL", waiting.trim().parse().unwrap());
        assert!(!status.success(), "{mode}: {status}");
    }
}

fn wait_until(is_so: impl Fn() -> bool, state: impl Fn() -> String) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 60, "{}", state());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
