//! `stats` and `ctl`: what a mount says of itself, and to whom.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::command::{WITHOUT_OTHERS, butternut, shell};
use super::image::{kernel_is_here, plain};
use super::mount::{OpenFuse, Place, own_copy};

/// A volume of this test's own, mounted for writing.
struct Served {
    place: Place,
    /// Goes after the mount.
    _scratch: TempDir,
}

impl Served {
    fn new(options: &str) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let (image, place) = (own_copy(&scratch), Place::new());
        butternut(&["mount", "-o", options, image.to_str().unwrap(), place.name()]).ok();
        Self { place, _scratch: scratch }
    }

    fn ctl(&self, words: &[&str]) -> super::command::Ran {
        butternut(&[&["ctl", self.place.name()], words].concat())
    }

    fn stats(&self) -> Value {
        let text = butternut(&["stats", "--json", self.place.name()]).ok();
        serde_json::from_str(&text).unwrap()
    }

    fn socket(&self) -> PathBuf {
        let device = fs::metadata(self.place.path()).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        format!("/run/butternut/{major}-{minor}.sock").into()
    }
}

fn said_to(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // It may have heard enough before the end.
    stream.write_all(bytes).unwrap_or_default();
    stream.shutdown(std::net::Shutdown::Write).unwrap_or_default();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map(drop).unwrap_or_default();
    String::from_utf8(answer).unwrap()
}

#[test]
fn stats_counts_what_was_done_in_the_mount() {
    if !kernel_is_here("stats_counts_what_was_done_in_the_mount") {
        return;
    }
    let served = Served::new("rw");
    let before = served.stats();
    let dir = served.place.name();
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
    assert!(grown("trees", "commits", "") >= 1);
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
    // Anything in the mount names it.
    let text = butternut(&["stats", "--prometheus", &format!("{dir}/newer")]).ok();
    assert!(text.contains("\n# TYPE butternut_commits_total counter\nbutternut_commits_total "));
    assert!(text.contains("\nbutternut_writeback_pages_total{reason=\"sync\"} "), "{text}");
    assert!(text.contains("butternut_latency_seconds_count{operation=\"rename\"} 1\n"), "{text}");
}

#[test]
fn ctl_shows_and_sets_switches_while_the_mount_serves() {
    if !kernel_is_here("ctl_shows_and_sets_switches_while_the_mount_serves") {
        return;
    }
    let served = Served::new("rw,dio_stable=trust");
    let all = served.ctl(&[]).ok();
    let words: Vec<&str> = all.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        words,
        ["nosec=on", "simple_read=on", "dio_stable=trust", "latency=on", "uncached_flush=device"]
    );
    assert!(all.contains("bounce|trust|buffered"), "{all}");
    assert_eq!(served.ctl(&["nosec"]).ok(), "on\n");
    assert_eq!(served.ctl(&["nosec=off"]).ok(), "");
    assert_eq!(served.ctl(&["nosec"]).ok(), "off\n");
    assert_eq!(served.stats()["switches"]["nosec"], "off");
    let said = served.ctl(&["--json", "dio_stable=bounce"]).ok();
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["key"], &said["value"]), (&"dio_stable".into(), &"bounce".into()));
    let said: Value = serde_json::from_str(&served.ctl(&["--json"]).ok()).unwrap();
    assert_eq!(said.as_array().map(Vec::len), Some(5));

    // What is switched off does not count on.
    served.ctl(&["latency=off"]).ok();
    let before = served.stats();
    fs::create_dir(served.place.path().join("unmeasured")).unwrap();
    assert_eq!(served.stats()["latency"]["create"], before["latency"]["create"]);
}

#[test]
fn ctl_refuses_by_name_what_it_does_not_know() {
    if !kernel_is_here("ctl_refuses_by_name_what_it_does_not_know") {
        return;
    }
    let served = Served::new("ro");
    let known = "no such switch: \"nosuch\" \
                 (known: nosec, simple_read, dio_stable, latency, uncached_flush)";
    for word in ["nosuch", "nosuch=on"] {
        assert_eq!(served.ctl(&[word]).failure(), format!("butternut: ctl: {known}"));
    }
    let said = served.ctl(&["nosec=maybe"]).failure();
    assert_eq!(said, "butternut: ctl: nosec: have \"maybe\", want on or off");
    let said = served.ctl(&["nosec="]).failure();
    assert_eq!(said, "butternut: ctl: nosec: have \"\", want on or off");
}

#[test]
fn what_is_no_mount_of_ours_is_said_so() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().to_str().unwrap();
    let cure = "(`findmnt -t fuse.butternut` lists what there is)";
    for (words, command) in [(["ctl", name], "ctl"), (["stats", name], "stats")] {
        let said = butternut(&words).failure();
        assert_eq!(said, format!("butternut: {command}: no butternut mount at {name} {cure}"));
    }
    let said = butternut(&["ctl", &format!("{name}/gone")]).failure();
    let want =
        format!("butternut: ctl: no butternut mount at {name}/gone: no such file or directory");
    assert_eq!(said, want);
}

#[test]
fn the_socket_is_its_owners_alone_and_goes_with_the_mount() {
    if !kernel_is_here("the_socket_is_its_owners_alone_and_goes_with_the_mount") {
        return;
    }
    let served = Served::new("ro,allow_other");
    let socket = served.socket();
    let meta = fs::metadata(&socket).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.mode() & 0o7777, 0o600);
    let folder = fs::metadata(socket.parent().unwrap()).unwrap();
    assert_eq!((folder.mode() & 0o7777, folder.uid()), (0o700, meta.uid()));

    // Another user cannot reach it; nor is one heard who does.
    let program = env!("CARGO_BIN_EXE_butternut");
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = scratch.path().display();
    let said = shell(&format!(
        "cp {program} {dir}/butternut; chmod 755 {dir}
         setpriv --reuid=1234 --regid=1234 --clear-groups {dir}/butternut ctl {} 2>&1 || true",
        served.place.name()
    ));
    assert!(said.contains("no control socket: permission denied (only its owner"), "{said}");

    butternut(&["umount", served.place.name()]).ok();
    // Another mount may have got the device number by now, and with it the name of the socket.
    let now = fs::symlink_metadata(&socket).ok().map(|now| (now.ino(), now.ctime_nsec()));
    assert_ne!(now, Some((meta.ino(), meta.ctime_nsec())));
}

#[test]
fn a_socket_that_a_killed_mount_left_is_replaced_or_said_to_be_dead() {
    if !kernel_is_here("a_socket_that_a_killed_mount_left_is_replaced_or_said_to_be_dead") {
        return;
    }
    let served = Served::new("ro");
    let socket = served.socket();
    shell(&format!(
        "kill -9 $(getfattr --only-values -n butternut.daemon {})",
        served.place.name()
    ));
    loop {
        let ran = served.ctl(&[]);
        if ran.code == Some(1) && ran.err.contains("(its process ") {
            break;
        }
        // It may be killed while it is asked. The runner of the tests ends one that hangs.
    }
    assert!(socket.exists());
    shell(&format!("umount -l {}", served.place.name()));
    // The next mount is likely to be given the same device number.
    for _ in 0..3 {
        let next = Served::new("ro");
        next.ctl(&["nosec"]).ok();
        butternut(&["umount", next.place.name()]).ok();
    }
    fs::remove_file(socket).unwrap_or_default();
}

#[test]
fn a_mount_that_ends_leaves_the_socket_of_the_next_one() {
    if !kernel_is_here("a_mount_that_ends_leaves_the_socket_of_the_next_one") {
        return;
    }
    let served = Served::new("ro");
    let socket = served.socket();
    // As the next mount does that is given this one's device number before this one's process ends.
    fs::remove_file(&socket).unwrap();
    let next = UnixListener::bind(&socket).unwrap();
    butternut(&["umount", served.place.name()]).ok();
    assert!(socket.exists());
    fs::remove_file(socket).unwrap();
    drop(next);
}

#[test]
fn rubbish_over_the_socket_is_answered_and_changes_nothing() {
    if !kernel_is_here("rubbish_over_the_socket_is_answered_and_changes_nothing") {
        return;
    }
    let served = Served::new("ro");
    let socket = served.socket();
    let switches = served.ctl(&[]).ok();
    let deep = "[".repeat(4000);
    let mut state = 88_172_645_463_325_252_u64;
    let mut noise = Vec::new();
    for _ in 0..1000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.push(state.to_le_bytes()[3]);
    }
    let cases: [&[u8]; 14] = [
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
        &[0xff; 10_000],
        &[deep.as_bytes(), b"\n"].concat(),
        &[&noise[..], b"\n"].concat(),
    ];
    for bytes in cases {
        let answer = said_to(&socket, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        // Who sends more than is read may be cut off without an answer.
        let is_error = answer.starts_with("{\"error\":\"") && answer.ends_with("\"}\n");
        assert!(is_error || (answer.is_empty() && bytes.len() > 4096), "{shown}: {answer}");
    }
    let want = "{\"ok\":[{\"key\":\"nosec\",";
    assert!(said_to(&socket, b"{\"ask\":\"switches\"}\nrest").starts_with(want));
    assert_eq!(served.ctl(&[]).ok(), switches);
}

#[test]
fn who_connects_and_says_nothing_keeps_others_waiting_for_seconds_only() {
    if !kernel_is_here("who_connects_and_says_nothing_keeps_others_waiting_for_seconds_only") {
        return;
    }
    let served = Served::new("ro");
    let mut silent = UnixStream::connect(served.socket()).unwrap();
    served.ctl(&["nosec"]).ok();
    let mut said = String::new();
    silent.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("{\"error\":\"the question:"), "{said}");
    // Nor does it keep the mount from ending.
    let _silent = UnixStream::connect(served.socket()).unwrap();
    butternut(&["umount", served.place.name()]).ok();
}

#[test]
fn a_user_without_root_asks_his_own_mount() {
    if !kernel_is_here("a_user_without_root_asks_his_own_mount") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, image) = (scratch.path().display(), plain().0.display());
    let program = env!("CARGO_BIN_EXE_butternut");
    let _open = OpenFuse::new();
    let said = shell(&format!(
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
    assert_eq!(said, "off\nnobody 600\n");
}

/// Makes a socket at a path and accepts nothing. More have connected than it has room for.
const FULL: &str = r#"use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0);
    bind($s, sockaddr_un($ARGV[0])) or die $!; listen($s, 0) or die $!;
    my @c; for (0..2) { socket($c[$_], AF_UNIX, SOCK_STREAM | 2048, 0);
    connect($c[$_], sockaddr_un($ARGV[0])); } $| = 1; print "full\n"; sleep 600;"#;

/// Makes a socket at a path, and answers each question with the same line.
const ANSWERING: &str = r#"use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0);
    bind($s, sockaddr_un($ARGV[0])) or die $!; listen($s, 9) or die $!; $| = 1; print "full\n";
    while (accept(my $c, $s)) { sysread($c, my $q, 4096); syswrite($c, "$ARGV[1]\n"); }"#;

/// A script in a mount namespace of its own, with a `/tmp` of its own, where any user may make
/// folders.
fn apart(script: &str) -> String {
    let (image, program) = (plain().0.display(), env!("CARGO_BIN_EXE_butternut"));
    let perl = "setpriv --reuid=nobody --regid=nogroup --clear-groups perl -e";
    let script = format!(
        "{WITHOUT_OTHERS} mount -t tmpfs none /tmp; chmod 1777 /tmp
         cd /tmp; mkdir m n; chown nobody n
         cp --sparse=always {image} a.img; cp a.img b.img; chown nobody b.img
         B={program}; trap 'kill $other; umount -l m n 2> /dev/null || true' EXIT
         socket() {{ {perl} \"$@\" > said & other=$!; until grep -q full said; do sleep 1; done; }}
         process() {{ sed -n 's/.*process.: \\([0-9]*\\).*/\\1/p' started; }}
         number() {{ grep \" /tmp/$1 \" /proc/self/mountinfo | cut -d ' ' -f 3 | tr : -; }}
         {script}"
    );
    format!("unshare --mount --propagation private sh -ec '{}'", script.replace('\'', "'\\''"))
}

#[test]
fn a_socket_of_another_user_is_not_connected_to_in_roots_name() {
    if !kernel_is_here("a_socket_of_another_user_is_not_connected_to_in_roots_name") {
        return;
    }
    // A volume of root's whose process has died, and what another user put in its socket's place.
    let said = shell(&apart(&format!(
        "$B mount --json a.img m > started; kill -9 $(process); number=$(number m)
         test -S /run/butternut/$number.sock
         setpriv --reuid=nobody --regid=nogroup --clear-groups mkdir -m 711 butternut-0
         socket '{FULL}' /tmp/butternut-0/$number.sock
         timeout 5 $B stats m 2>&1 || echo status $?
         timeout 60 $B mount b.img n || echo status $?
         $B umount n; rm /run/butternut/$number.sock"
    )));
    assert!(said.contains("no control socket: connection refused"), "{said}");
    assert!(said.contains("\nstatus 1\n") && !said.contains("status 124"), "{said}");
}

#[test]
fn a_socket_that_accepts_nothing_is_waited_for_no_longer_than_any_answer() {
    if !kernel_is_here("a_socket_that_accepts_nothing_is_waited_for_no_longer_than_any_answer") {
        return;
    }
    let _open = OpenFuse::new();
    let said = shell(&apart(&of_user(&format!("socket '{FULL}' $socket"))));
    assert!(said.contains("timed out") && said.contains("status 1\n"), "{said}");
}

#[test]
fn what_a_socket_answers_drives_no_terminal() {
    if !kernel_is_here("what_a_socket_answers_drives_no_terminal") {
        return;
    }
    let _open = OpenFuse::new();
    let counts = r#"{"ok":"\u001b[2Jfake\u009b1m\ntwo \\"}"#;
    let error = r#"{"error":"\u001b]0;title\u0007\nbutternut: two"}"#;
    for (answer, want) in [
        (counts, "\\u{1b}[2Jfake\\u{9b}1m\ntwo \\status 0\n"),
        (error, "\\u{1b}]0;title\\u{7}\\nbutternut"),
        ("\u{1b}[2J", "is not understood"),
    ] {
        let said = shell(&apart(&of_user(&format!("socket '{ANSWERING}' $socket '{answer}'"))));
        assert!(said.contains(want) && !said.contains('\u{1b}'), "{said:?}");
    }
}

/// Asks for the counts of a mount of another user, whose process has died and whose socket was made
/// by a script.
fn of_user(script: &str) -> String {
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
fn the_columns_of_switches_stand_below_each_other() {
    if !kernel_is_here("the_columns_of_switches_stand_below_each_other") {
        return;
    }
    let served = Served::new("rw");
    let table = |served: &Served| {
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
    assert_eq!(table(&served), before, "a value that is set moves no column");
}
