//! `stats` and `ctl`: what a mount reports, and which users may read and change it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::command::{butternut, in_mount_namespace, shell};
use super::image::{kernel_tests_enabled, plain};
use super::mount::{MountPoint, PublicFuseDevice, own_copy};

/// A volume that only this test uses, mounted for writing.
struct ServedVolume {
    mount_point: MountPoint,
    /// Removed after the mount, in the order of the fields.
    _scratch: TempDir,
}

impl ServedVolume {
    fn new(options: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let (image, mount_point) = (own_copy(&scratch), MountPoint::new());
        butternut(&["mount", "-o", options, image.to_str().unwrap(), mount_point.name()]).ok();
        Self { mount_point, _scratch: scratch }
    }

    fn ctl(&self, words: &[&str]) -> super::command::CommandOutput {
        butternut(&[&["ctl", self.mount_point.name()], words].concat())
    }

    fn stats(&self) -> Value {
        let text = butternut(&["stats", "--json", self.mount_point.name()]).ok();
        serde_json::from_str(&text).unwrap()
    }

    fn socket(&self) -> PathBuf {
        let device = fs::metadata(self.mount_point.path()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        format!("/run/butternut/{major}-{minor}.sock").into()
    }
}

fn send(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // The server may close the connection before it has read everything.
    stream.write_all(bytes).unwrap_or_default();
    stream.shutdown(std::net::Shutdown::Write).unwrap_or_default();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map(drop).unwrap_or_default();
    String::from_utf8(answer).unwrap()
}

#[test]
fn stats_counts_operations_on_the_mount() {
    if !kernel_tests_enabled("stats_counts_operations_on_the_mount") {
        return;
    }
    let served = ServedVolume::new("rw");
    let before = served.stats();
    let dir = served.mount_point.name();
    shell(&format!(
        "echo something > {dir}/new; sync {dir}/new; mv {dir}/new {dir}/newer
         mkdir {dir}/folder; rmdir {dir}/folder; sync -f {dir}"
    ));
    let after = served.stats();
    let grown = |group: &str, key: &str, field: &str| {
        let at = |stats: &Value| {
            let value = &stats[group][key];
            if field.is_empty() { value } else { &value[field] }.as_u64().unwrap()
        };
        at(&after) - at(&before)
    };
    assert_eq!(grown("latency", "create", "count"), 2);
    assert_eq!(grown("latency", "rename", "count"), 1);
    assert_eq!(grown("latency", "unlink", "count"), 1);
    assert_eq!(grown("latency", "cached_write", "count"), 1);
    assert!(grown("latency", "fsync", "count") >= 1);
    assert!(grown("syncs", "fsync_fast", "") >= 1);
    assert!(grown("syncs", "log_batches", "") >= 1);
    assert!(grown("pages", "writeback_pages", "sync") >= 1);
    assert!(after["pages"]["page_cache_bytes_max"].as_u64() > Some(0));
    let fsync = &after["latency"]["fsync"];
    let at = |field: &str| fsync[field].as_u64().unwrap();
    assert!(0 < at("p50_ns") && at("p50_ns") <= at("p999_ns") && at("p999_ns") <= at("max_ns"));
    let device = &after["devices"][0];
    assert!(device["flushes"].as_u64() >= Some(2) && device["bytes_written"].as_u64() > Some(0));
    assert_eq!((&device["write_errors"], &after["is_writable"]), (&0.into(), &true.into()));

    let text = butternut(&["stats", dir]).ok();
    for word in [
        "dio_write_shared",
        "cached_bytes_peak",
        "writeback_pages_uncached",
        "pending_writes",
        "commits",
        "p99.9",
        "fsync",
        "flushes",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // Each number is explained by a sentence; the words before it are those of the plain form.
    let explained = butternut(&["stats", "--explain", dir]).ok();
    let numbers = explained.lines().filter(|line| line.starts_with("  ") && !line.contains("us "));
    let without = numbers.filter(|line| line.split_whitespace().nth(2).is_none());
    assert_eq!(without.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(explained.contains("  Direct writes that shared the inode lock.\n"), "{explained}");
    // Any file of the mount stands for the mount.
    let text = butternut(&["stats", "--prometheus", &format!("{dir}/newer")]).ok();
    assert!(text.contains("\n# TYPE butternut_commits_total counter\nbutternut_commits_total "));
    assert!(text.contains("\nbutternut_writeback_pages_total{reason=\"sync\"} "), "{text}");
    assert!(text.contains("butternut_latency_seconds_count{operation=\"rename\"} 1\n"), "{text}");
}

#[test]
fn ctl_shows_and_sets_tunables_of_a_mount() {
    if !kernel_tests_enabled("ctl_shows_and_sets_tunables_of_a_mount") {
        return;
    }
    let served = ServedVolume::new("rw,dio_stable=trust");
    let all = served.ctl(&[]).ok();
    let words: Vec<&str> = all.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        words,
        [
            "nosec=on",
            "simple_read=on",
            "dio_stable=trust",
            "latency=on",
            "uncached_flush=device",
            "log_tree=on",
            "full_fsync_on_release=off"
        ]
    );
    assert!(all.contains("bounce|trust|buffered"), "{all}");
    assert_eq!(served.ctl(&["nosec"]).ok(), "on\n");
    assert_eq!(served.ctl(&["nosec=off"]).ok(), "");
    assert_eq!(served.ctl(&["nosec"]).ok(), "off\n");
    assert_eq!(served.stats()["tunables"]["nosec"], "off");
    let output = served.ctl(&["--json", "dio_stable=bounce"]).ok();
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&report["key"], &report["value"]), (&"dio_stable".into(), &"bounce".into()));
    let report: Value = serde_json::from_str(&served.ctl(&["--json"]).ok()).unwrap();
    assert_eq!(report.as_array().map(Vec::len), Some(7));

    // A histogram that is switched off does not count.
    served.ctl(&["latency=off"]).ok();
    let before = served.stats();
    fs::create_dir(served.mount_point.path().join("unmeasured")).unwrap();
    assert_eq!(served.stats()["latency"]["create"], before["latency"]["create"]);
}

#[test]
fn ctl_rejects_unknown_tunables_and_values() {
    if !kernel_tests_enabled("ctl_rejects_unknown_tunables_and_values") {
        return;
    }
    let served = ServedVolume::new("ro");
    let known = "no such tunable: \"nosuch\" \
                 (known: nosec, simple_read, dio_stable, latency, uncached_flush, log_tree, \
                 full_fsync_on_release)";
    for word in ["nosuch", "nosuch=on"] {
        assert_eq!(served.ctl(&[word]).failure(), format!("butternut: ctl: {known}"));
    }
    let message = served.ctl(&["nosec=maybe"]).failure();
    assert_eq!(message, "butternut: ctl: nosec: have \"maybe\", want on or off");
    let message = served.ctl(&["nosec="]).failure();
    assert_eq!(message, "butternut: ctl: nosec: have \"\", want on or off");
}

#[test]
fn stats_and_ctl_reject_other_directories() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    let cure = "(`findmnt -t fuse.butternut,fuseblk.butternut` lists the mounts)";
    for (words, command) in [(["ctl", name], "ctl"), (["stats", name], "stats")] {
        let message = butternut(&words).failure();
        assert_eq!(message, format!("butternut: {command}: no butternut mount at {name} {cure}"));
    }
    let message = butternut(&["ctl", &format!("{name}/gone")]).failure();
    let want =
        format!("butternut: ctl: no butternut mount at {name}/gone: no such file or directory");
    assert_eq!(message, want);
}

#[test]
fn the_socket_is_private_and_removed_with_the_mount() {
    if !kernel_tests_enabled("the_socket_is_private_and_removed_with_the_mount") {
        return;
    }
    let served = ServedVolume::new("ro,allow_other");
    let socket = served.socket();
    let meta = fs::metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.mode() & 0o7777, 0o600);
    let folder = fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!((folder.mode() & 0o7777, folder.uid()), (0o700, meta.uid()));

    // Another user cannot connect, and would get no answer if it could.
    let program = env!("CARGO_BIN_EXE_butternut");
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = scratch.path().display();
    let output = shell(&format!(
        "cp {program} {dir}/butternut; chmod 755 {dir}
         setpriv --reuid=1234 --regid=1234 --clear-groups {dir}/butternut ctl {} 2>&1 || true",
        served.mount_point.name()
    ));
    assert!(output.contains("no control socket: permission denied (only its owner"), "{output}");

    butternut(&["umount", served.mount_point.name()]).ok();
    // Another mount may have the device number by now, and a socket of that name.
    let now = fs::symlink_metadata(&socket).ok().map(|now| (now.ino(), now.ctime_nsec()));
    assert_ne!(now, Some((meta.ino(), meta.ctime_nsec())));
}

#[test]
fn the_socket_of_a_killed_mount_is_reported_and_replaced() {
    if !kernel_tests_enabled("the_socket_of_a_killed_mount_is_reported_and_replaced") {
        return;
    }
    let served = ServedVolume::new("ro");
    let socket = served.socket();
    shell(&format!(
        "kill -9 $(getfattr --only-values -n butternut.daemon {})",
        served.mount_point.name()
    ));
    loop {
        let ran = served.ctl(&[]);
        if ran.code == Some(1) && ran.err.contains("(its process ") {
            break;
        }
        // The process may be killed while it serves the request. The test runner ends a test that
        // hangs.
    }
    assert!(socket.exists());
    shell(&format!("umount -l {}", served.mount_point.name()));
    // The next mount is likely to get the same device number.
    for _ in 0..3 {
        let next = ServedVolume::new("ro");
        next.ctl(&["nosec"]).ok();
        butternut(&["umount", next.mount_point.name()]).ok();
    }
    fs::remove_file(socket).unwrap_or_default();
}

#[test]
fn an_ending_mount_keeps_the_socket_of_the_next_one() {
    if !kernel_tests_enabled("an_ending_mount_keeps_the_socket_of_the_next_one") {
        return;
    }
    let served = ServedVolume::new("ro");
    let socket = served.socket();
    // A next mount with the same device number does this before the process of the first one ends.
    fs::remove_file(&socket).unwrap();
    let next = UnixListener::bind(&socket).unwrap();
    butternut(&["umount", served.mount_point.name()]).ok();
    assert!(socket.exists());
    fs::remove_file(socket).unwrap();
    drop(next);
}

#[test]
fn malformed_requests_get_errors_and_change_nothing() {
    if !kernel_tests_enabled("malformed_requests_get_errors_and_change_nothing") {
        return;
    }
    let served = ServedVolume::new("ro");
    let socket = served.socket();
    let tunables = served.ctl(&[]).ok();
    let deep = "[".repeat(4000);
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = Vec::new();
    for _ in 0..1000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.push(state.to_le_bytes()[3]);
    }
    let cases: [&[u8]; 24] = [
        b"",
        b"\n",
        b"\0\0\0\0\n",
        b"{}\n",
        b"null\n",
        b"{\"ask\":\"stats\"}\n",
        b"{\"ask\":\"stats\",\"as\":\"xml\"}\n",
        b"{\"ask\":\"set\",\"key\":\"nosec\"}\n",
        b"{\"ask\":\"set\",\"key\":\"nosec\",\"value\":0}\n",
        b"{\"ask\":\"set\",\"key\":\"\\u0000\",\"value\":\"\\ud800\"}\n",
        b"{\"ask\":\"set\",\"key\":\"nosec\",\"value\":\"off\"",
        b"{\"ask\":\"label\",\"label\":[300]}\n",
        b"{\"ask\":\"label\",\"label\":[0]}\n",
        b"{\"ask\":\"label\",\"label\":[98]}\n",
        b"{\"ask\":\"resize\",\"devid\":1,\"size\":\"most\"}\n",
        b"{\"ask\":\"resize\",\"devid\":18446744073709551615,\"size\":\"max\"}\n",
        b"{\"ask\":\"resize\",\"devid\":1,\"size\":{\"more\":18446744073709551615}}\n",
        b"{\"ask\":\"resize\",\"devid\":1,\"size\":{\"exactly\":0}}\n",
        b"{\"ask\":\"receive\",\"directory\":0,\"end\":\"input\"}\n",
        b"{\"ask\":\"receive\",\"directory\":9223372036854775809,\"end\":\"input\"}\n",
        b"{\"ask\":\"receive\",\"directory\":300,\"end\":\"input\"}\n",
        &[0xff; 10_000],
        &[deep.as_bytes(), b"\n"].concat(),
        &[&noise[..], b"\n"].concat(),
    ];
    for bytes in cases {
        let answer = send(&socket, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        // A client that sends more than the server reads may get no answer.
        let is_error = answer.starts_with("{\"error\":\"") && answer.ends_with("\"}\n");
        assert!(is_error || (answer.is_empty() && bytes.len() > 4096), "{shown}: {answer}");
    }
    let want = "{\"ok\":[{\"key\":\"nosec\",";
    assert!(send(&socket, b"{\"ask\":\"tunables\"}\nrest").starts_with(want));
    assert_eq!(served.ctl(&[]).ok(), tunables);
}

#[test]
fn a_silent_client_blocks_the_socket_for_seconds_only() {
    if !kernel_tests_enabled("a_silent_client_blocks_the_socket_for_seconds_only") {
        return;
    }
    let served = ServedVolume::new("ro");
    let mut silent = UnixStream::connect(served.socket()).unwrap();
    served.ctl(&["nosec"]).ok();
    let mut output = String::new();
    silent.read_to_string(&mut output).unwrap();
    assert!(output.starts_with("{\"error\":\"the request:"), "{output}");
    // A silent client does not keep the mount from ending.
    let _silent = UnixStream::connect(served.socket()).unwrap();
    butternut(&["umount", served.mount_point.name()]).ok();
}

#[test]
fn an_unprivileged_user_controls_its_own_mount() {
    if !kernel_tests_enabled("an_unprivileged_user_controls_its_own_mount") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().display(), plain().0.display());
    let program = env!("CARGO_BIN_EXE_butternut");
    let _open = PublicFuseDevice::new();
    let output = shell(&format!(
        "cp --sparse=always {image} {dir}/a.img; cp {program} {dir}/butternut
         chmod 755 {dir}; mkdir -m 700 {dir}/m {dir}/run; chown nobody {dir}/m {dir}/run
         chmod 644 {dir}/a.img
         as='env XDG_RUNTIME_DIR={dir}/run setpriv --reuid=nobody --regid=nogroup --clear-groups'
         $as {dir}/butternut mount -o ro {dir}/a.img {dir}/m
         $as {dir}/butternut ctl {dir}/m nosec=off
         $as {dir}/butternut ctl {dir}/m nosec
         stat -c '%U %a' {dir}/run/butternut/*
         $as {dir}/butternut umount {dir}/m
         ls -A {dir}/run/butternut"
    ));
    assert_eq!(output, "off\nnobody 600\n");
}

/// A Perl script that listens on a socket, never accepts, and fills the socket's backlog.
const FULL: &str = r#"use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0);
    bind($s, sockaddr_un($ARGV[0])) or die $!; listen($s, 0) or die $!;
    my @c; for (0..2) { socket($c[$_], AF_UNIX, SOCK_STREAM | 2048, 0);
    connect($c[$_], sockaddr_un($ARGV[0])); } $| = 1; print "full\n"; sleep 600;"#;

/// A Perl script that listens on a socket and answers every request with the same line.
const ANSWERING: &str = r#"use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0);
    bind($s, sockaddr_un($ARGV[0])) or die $!; listen($s, 9) or die $!; $| = 1; print "full\n";
    while (accept(my $c, $s)) { sysread($c, my $q, 4096); syswrite($c, "$ARGV[1]\n"); }"#;

/// Runs a script in its own mount namespace, with its own `/tmp` in which every user may create
/// directories.
fn with_own_tmp(script: &str) -> String {
    let (image, program) = (plain().0.display(), env!("CARGO_BIN_EXE_butternut"));
    let perl = "setpriv --reuid=nobody --regid=nogroup --clear-groups perl -e";
    in_mount_namespace(&format!(
        "mount -t tmpfs none /tmp; chmod 1777 /tmp
         cd /tmp; mkdir m n; chown nobody n
         cp --sparse=always {image} a.img; cp a.img b.img; chown nobody b.img
         B={program}; trap 'kill $other; umount -l m n 2> /dev/null || true' EXIT
         socket() {{ {perl} \"$@\" > log & other=$!; until grep -q full log; do sleep 1; done; }}
         process() {{ sed -n 's/.*process.: \\([0-9]*\\).*/\\1/p' started; }}
         number() {{ grep \" /tmp/$1 \" /proc/self/mountinfo | cut -d ' ' -f 3 | tr : -; }}
         {script}"
    ))
}

#[test]
fn root_does_not_connect_to_a_socket_of_another_user() {
    if !kernel_tests_enabled("root_does_not_connect_to_a_socket_of_another_user") {
        return;
    }
    // A mount of root whose process was killed, and a socket that another user made at the path of
    // the mount's socket.
    let output = shell(&with_own_tmp(&format!(
        "$B mount --json a.img m > started; kill -9 $(process); number=$(number m)
         test -S /run/butternut/$number.sock
         setpriv --reuid=nobody --regid=nogroup --clear-groups mkdir -m 711 butternut-0
         socket '{FULL}' /tmp/butternut-0/$number.sock
         timeout 5 $B stats m 2>&1 || echo status $?
         timeout 60 $B mount b.img n || echo status $?
         $B umount n; rm /run/butternut/$number.sock"
    )));
    assert!(output.contains("no control socket: connection refused"), "{output}");
    assert!(output.contains("\nstatus 1\n") && !output.contains("status 124"), "{output}");
}

#[test]
fn connecting_to_a_full_socket_times_out() {
    if !kernel_tests_enabled("connecting_to_a_full_socket_times_out") {
        return;
    }
    let _open = PublicFuseDevice::new();
    let output = shell(&with_own_tmp(&stats_of_dead_mount(&format!("socket '{FULL}' $socket"))));
    assert!(output.contains("timed out") && output.contains("status 1\n"), "{output}");
}

#[test]
fn control_characters_in_replies_are_escaped() {
    if !kernel_tests_enabled("control_characters_in_replies_are_escaped") {
        return;
    }
    let _open = PublicFuseDevice::new();
    let counts = r#"{"ok":"\u001b[2Jfake\u009b1m\ntwo \\"}"#;
    let error = r#"{"error":"\u001b]0;title\u0007\nbutternut: two"}"#;
    for (answer, want) in [
        (counts, "\\u{1b}[2Jfake\\u{9b}1m\ntwo \\status 0\n"),
        (error, "\\u{1b}]0;title\\u{7}\\nbutternut"),
        ("\u{1b}[2J", " cannot be parsed"),
    ] {
        let output = shell(&with_own_tmp(&stats_of_dead_mount(&format!(
            "socket '{ANSWERING}' $socket '{answer}'"
        ))));
        assert!(output.contains(want) && !output.contains('\u{1b}'), "{output:?}");
    }
}

/// Reads the statistics of a mount of another user, whose process was killed and whose socket
/// `script` makes.
fn stats_of_dead_mount(script: &str) -> String {
    format!(
        "cp $B butternut; as='env -u XDG_RUNTIME_DIR setpriv --reuid=nobody --regid=nogroup'
         as=\"$as --clear-groups\"
         $as ./butternut mount --json b.img n > started
         kill -9 $(process); socket=/tmp/butternut-$(id -u nobody)/$(number n).sock
         rm $socket; {script}
         timeout 30 $B stats n 2>&1 && echo status 0 || echo status $?"
    )
}

#[test]
fn tunables_are_printed_in_aligned_columns() {
    if !kernel_tests_enabled("tunables_are_printed_in_aligned_columns") {
        return;
    }
    let served = ServedVolume::new("rw");
    let table = |served: &ServedVolume| {
        let text = served.ctl(&[]).ok();
        let columns = |line: &str| -> Vec<usize> {
            let starts = |at: &usize| line[..*at].ends_with("  ") && !line[*at..].starts_with(' ');
            (1..line.len()).filter(starts).collect()
        };
        let found: Vec<Vec<usize>> = text.lines().map(columns).collect();
        assert!(found.len() > 3 && found.iter().all(|line| *line == found[0]), "{text}");
        found[0].clone()
    };
    let before = table(&served);
    served.ctl(&["uncached_flush=inline"]).ok();
    assert_eq!(table(&served), before, "a changed value moves no column");
}
