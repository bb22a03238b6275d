//! Quotas and quota groups: what the commands print is what btrfs-progs prints, and the kernel has
//! the groups and the limits that they set.

use super::command::{butternut, run, script_on_mount, shell};
use super::image::{build, kernel_tests_enabled};
use butternut_undo::MountGuard;
use std::path::{Path, PathBuf};

/// Options of `qgroup show` whose output the kernel's mount gave for the image.
const SHOWN: [&str; 15] = [
    "",
    "-p",
    "-pcre",
    "--raw -re",
    "-c --si",
    "--sort=-rfer",
    "--sort=excl,-qgroupid",
    "--sort=max_rfer -r",
    "--sort=-max_excl,+rfer -e",
    "--sort=-path",
    "--sort=,path,",
    "--kbytes",
    "--si --kbytes",
    "--tbytes --iec",
    "--human-readable --sync",
];

/// A filter, and the path of a subvolume in the volume.
const FILTERED: [(&str, &str); 4] =
    [("-F", "one"), ("-f", "one"), ("-F", "dir/three"), ("-F", "with space")];

const QUOTAS: &str = r"
    truncate -s 300M IMG; mkfs.btrfs -q IMG
    mkdir -p DIR/m; mount -o loop IMG DIR/m
    trap 'cd /; umount DIR/m 2>/dev/null || true' EXIT
    cd DIR/m; btrfs -q subvolume create one; head -c 3M /dev/urandom > one/file
    btrfs -q subvolume snapshot one 'with space'; mkdir dir; btrfs -q subvolume create dir/three
    btrfs quota enable .; btrfs quota rescan -W .
    btrfs qgroup create 1/100 .; btrfs qgroup create 2/1 .
    for id in 256 257; do btrfs -q qgroup assign --no-rescan 0/$id 1/100 . || true; done
    btrfs -q qgroup assign --no-rescan 1/100 2/1 . || true
    btrfs quota rescan -w . > /dev/null
    btrfs qgroup limit 1G 1/100 .; btrfs qgroup limit -e 5M 0/256 .; sync -f .
    number=0
    for options in SHOWN; do
        btrfs qgroup show $options . > ../shown$number; number=$((number + 1))
    done
    FILTERED";

fn image() -> (PathBuf, PathBuf) {
    let shown = SHOWN.map(|options| format!("'{options}'")).join(" ");
    let filtered = FILTERED.iter().enumerate().map(|(number, (option, path))| {
        format!("btrfs qgroup show -pcre {option} '{path}' > ../filtered{number}; ")
    });
    let script = QUOTAS.replace("SHOWN", &shown).replace("FILTERED", &filtered.collect::<String>());
    build("cli-quotas", &script)
}

/// Lines without the path column of higher groups: btrfs-progs prints parents of a group there, and
/// counts them as its members.
fn lines(text: &str) -> Vec<String> {
    let heading = text.lines().next().unwrap_or_default();
    let path_at = heading.find("Path").unwrap() - 2;
    let is_higher = |line: &str| line.starts_with("1/") || line.starts_with("2/");
    let common = |line: &str| {
        let shown = if is_higher(line) { &line[..path_at] } else { line };
        shown.trim_end().to_owned()
    };
    text.lines().map(common).collect()
}

#[test]
fn qgroup_show_matches_btrfs_progs() {
    if !kernel_tests_enabled("qgroup_show_matches_btrfs_progs") {
        return;
    }
    let (image, folder) = image();
    for (number, options) in SHOWN.iter().enumerate() {
        let expected = std::fs::read_to_string(folder.join(format!("shown{number}"))).unwrap();
        let mut words = vec!["qgroup", "show"];
        words.extend(options.split_whitespace());
        words.push(image.to_str().unwrap());
        assert_eq!(lines(&butternut(&words).ok()), lines(&expected), "{options}");
    }
    for (number, (option, path)) in FILTERED.into_iter().enumerate() {
        let expected = std::fs::read_to_string(folder.join(format!("filtered{number}"))).unwrap();
        let volume = format!("{}@{path}", image.display());
        let shown = butternut(&["qgroup", "show", "-pcre", option, &volume]).ok();
        assert_eq!(lines(&shown), lines(&expected), "{option} {path}");
    }
    let volume = format!("{}@one", image.display());
    let groups =
        butternut(&["qgroup", "show", "--json", "-F", "--sort", "-qgroupid", &volume]).ok();
    let groups: serde_json::Value = serde_json::from_str(&groups).unwrap();
    let ids: Vec<_> = groups.as_array().unwrap().iter().map(|group| &group["id"]).collect();
    assert_eq!(ids, ["2/1", "1/100", "0/256"]);
    let refused = butternut(&["qgroup", "show", "--sort=size", image.to_str().unwrap()]);
    assert!(refused.err.contains("no field is named \"size\""), "{}", refused.err);
    let json = butternut(&["qgroup", "show", "--json", image.to_str().unwrap()]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[1]["id"], "0/256");
    assert_eq!(json[1]["path"], "one");
    assert_eq!(json[1]["parents"][0], "1/100");
    assert_eq!(json[1]["max_exclusive_bytes"], 5 << 20);
    assert_eq!(json[4]["children"][1], "0/257");
}

/// The compressed sizes, which the kernel does not count, are left out.
#[test]
fn the_report_of_check_is_that_of_btrfs_progs() {
    if !kernel_tests_enabled("the_report_of_check_is_that_of_btrfs_progs") {
        return;
    }
    let image = image().0;
    let counts = |report: &str| -> Vec<String> {
        let is_count =
            |line: &&str| ["Counts", "our:", "disk:"].iter().any(|word| line.starts_with(word));
        let shown = report.lines().filter(is_count);
        let words = |line: &str| -> Vec<String> {
            let words = line.split_whitespace().map(str::to_owned);
            if line.starts_with("Counts") { words.collect() } else { words.take(3).collect() }
        };
        shown.map(|line| words(line).join(" ")).collect()
    };
    let expected = run("btrfs", &["check".as_ref(), "-Q".as_ref(), image.as_os_str()]);
    let expected = counts(&expected);
    assert_eq!(expected.len(), 6 * 5, "{expected:?}");
    let image = image.to_str().unwrap();
    for option in ["-Q", "--qgroup-report"] {
        let report = butternut(&["check", option, image]).ok();
        assert_eq!(counts(&report), expected, "{report}");
        assert!(!report.contains("note:"), "{report}");
    }
    assert_eq!(counts(&butternut(&["check", image]).ok()), Vec::<String>::new());
    let report = butternut(&["check", "--json", "-Q", image]).ok();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let group = &report["qgroups"][4];
    assert_eq!(group["id"], "1/100");
    assert_eq!(group["referenced_bytes"], group["counted_referenced_bytes"]);
    assert!(group["counted_exclusive_bytes"].as_u64().unwrap() > 3_000_000, "{group}");
}

/// Returns a copy of the image that may be changed, in a directory of its own.
fn copy_of_image() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
    let copy = dir.path().join("copy.img");
    run("cp", &["--sparse=always".as_ref(), image().0.as_os_str(), copy.as_os_str()]);
    (dir, copy)
}

fn kernel_shows(image: &Path) -> String {
    let dir = tempfile::TempDir::with_prefix("butternut-test-").unwrap();
    let (image, at) = (image.display(), dir.path().display());
    shell(&format!(
        "mount -o loop {image} {at}; trap 'umount {at}' EXIT
         btrfs qgroup show --raw -pcre {at}; btrfs quota rescan -w {at} > /dev/null
         btrfs qgroup show --raw -pcre {at}"
    ))
}

#[test]
fn groups_and_limits_are_changed_for_the_kernel() {
    if !kernel_tests_enabled("groups_and_limits_are_changed_for_the_kernel") {
        return;
    }
    let (_dir, copy) = copy_of_image();
    let volume = copy.to_str().unwrap();
    let ok = |words: &[&str]| butternut(words).ok();
    ok(&["qgroup", "create", "1/7", volume]);
    ok(&["qgroup", "assign", "0/258", "1/7", volume]);
    ok(&["qgroup", "limit", "64M", "1/7", volume]);
    ok(&["qgroup", "limit", "-e", "none", "0/256", volume]);
    ok(&["qgroup", "limit", "32M", &format!("{volume}@dir/three")]);
    ok(&["qgroup", "remove", "0/257", "1/100", volume]);
    let shown = kernel_shows(&copy);
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let (before, after) = rows.split_at(rows.len() / 2);
    assert_eq!(before, after, "a rescan of the kernel changes nothing");
    let row = |id: &str| before.iter().find(|row| row[0] == id).unwrap();
    assert_eq!(row("1/7")[3..7], ["67108864", "none", "-", "0/258"]);
    assert_eq!(row("0/256")[3..6], ["none", "none", "1/100"]);
    assert_eq!(row("0/257")[5], "-");
    assert_eq!(row("0/258")[3], "33554432");
    let refused = butternut(&["qgroup", "create", "7", volume]).usage();
    assert!(refused.contains("LEVEL/NUMBER"), "{refused}");
    butternut(&["qgroup", "destroy", "1/7", volume]).failure();
    ok(&["quota", "disable", volume]);
    assert_eq!(ok(&["quota", "status", volume]), "Enabled:      no\n");
    let refused = butternut(&["qgroup", "show", volume]).failure();
    assert!(refused.contains("quotas are disabled"), "{refused}");
    ok(&["quota", "enable", volume]);
    ok(&["quota", "rescan", volume]);
    assert_eq!(
        ok(&["quota", "status", volume]),
        "Enabled:      yes\nMode:         full\nInconsistent: no\nGroups:       4\n"
    );
    let shown = kernel_shows(&copy);
    let rows: Vec<&str> = shown.lines().collect();
    let (before, after) = rows.split_at(rows.len() / 2);
    assert_eq!(before, after);
}

/// The kernel computes the same numbers for subvolumes that are in groups from the beginning. A
/// mount of the kernel's btrfs takes the option, too.
#[test]
fn new_subvolumes_are_in_quota_groups_for_the_kernel() {
    if !kernel_tests_enabled("new_subvolumes_are_in_quota_groups_for_the_kernel") {
        return;
    }
    let (dir, copy) = copy_of_image();
    let volume = copy.to_str().unwrap();
    let ok = |words: &[&str]| butternut(words).ok();
    ok(&["subvolume", "create", "-i", "1/100", "-i", "2/1", volume, "new", "newer"]);
    ok(&["subvolume", "snapshot", "--qgroup", "1/100", volume, "one", "taken"]);
    ok(&["subvolume", "snapshot", "-r", "-i", "2/1", volume, "dir/three", "fourth"]);
    for (group, why) in [
        ("1/77", "there is no quota group 1/77"),
        ("0/256", "quota group: have 0/256, want one above level 0"),
        ("100", "LEVEL/NUMBER"),
    ] {
        for words in [
            &["create", "-i", group, volume, "no"][..],
            &["snapshot", "-i", group, volume, "one", "no"],
        ] {
            let refused = butternut(&[&["subvolume"][..], words].concat());
            let refused = if group.contains('/') { refused.failure() } else { refused.usage() };
            assert!(refused.contains(why), "{refused}");
        }
    }
    assert!(!ok(&["ls", volume]).contains("no\n"));
    let shown = kernel_shows(&copy);
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let (before, after) = rows.split_at(rows.len() / 2);
    assert_eq!(before, after, "a rescan of the kernel changes nothing");
    let row = |id: &str| before.iter().find(|row| row[0] == id).unwrap();
    for (id, parents) in
        [("0/259", "1/100,2/1"), ("0/260", "1/100,2/1"), ("0/261", "1/100"), ("0/262", "2/1")]
    {
        assert_eq!(row(id)[5], parents, "{id}");
    }
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let at = at.to_str().unwrap();
    shell(&format!("mount -o loop {volume} {at}"));
    ok(&["subvolume", "create", "-i", "1/100", &format!("{at}/kernel")]);
    let (one, snap) = (format!("{at}/one"), format!("{at}/snap"));
    ok(&["subvolume", "snapshot", "-i", "2/1", "-i", "1/100", &one, &snap]);
    let refused = butternut(&["subvolume", "create", "-i", "1/77", &format!("{at}/no")]).failure();
    assert!(refused.contains("the quota groups of -i must exist"), "{refused}");
    let shown = shell(&format!("btrfs qgroup show -p {at}; umount {at}"));
    let parents = |id: &str| {
        let line = shown.lines().find(|line| line.starts_with(id)).unwrap();
        line.split_whitespace().nth(3).unwrap().to_owned()
    };
    assert_eq!([parents("0/263"), parents("0/264")], ["1/100", "1/100,2/1"]);
}

/// As for [`script_on_mount`].
const ON_A_MOUNT: &str = r#"
try "$B" quota status .
try "$B" qgroup show .
try "$B" qgroup create 1/7 .
"$B" subvolume create ./a ./b
mkdir -m 777 open
head -c 3M /dev/urandom > a/file
cp a/file b/file
try "$B" quota enable "$M/a"
try "$B" quota enable .
try "$B" qgroup create 1/7 .
try "$B" qgroup create 1/7 .
try "$B" qgroup assign 0/256 1/7 .
try "$B" qgroup assign 0/257 1/7 .
try "$B" qgroup limit 5M 1/7 .
try "$B" qgroup limit -e 1G 1/7 a
try "$B" qgroup limit 1M 1/8 a
try "$B" qgroup limit 6M a
"$B" --json qgroup show -f a | grep -o '"max_referenced_bytes":[0-9]*'
try "$B" qgroup limit none "$M/a"
try "$B" qgroup limit 6M open
try "$B" qgroup limit 6M
try "$B" qgroup create 7 .
try user "$B" quota status "$M"
try user "$B" quota disable "$M"
try sh -c 'head -c 4M /dev/zero > b/more'
rm b/more
try "$B" qgroup limit none 1/7 .
try sh -c 'head -c 4M /dev/zero > b/more'
rm b/more
try "$B" qgroup remove 0/256 1/7 .
"$B" subvolume snapshot a ./c
try "$B" quota rescan .
try "$B" quota status .
"$B" --json quota status .
"$B" --json quota rescan "$M"
"$B" subvolume create -i 1/7 ./d
"$B" subvolume snapshot -i 1/7 a ./e
try user "$B" subvolume create -i 1/7 "$M/open/f"
try "$B" subvolume create -i 1/77 ./g
try "$B" subvolume snapshot -i 0/256 a ./g
try ls -d g
try "$B" quota status /proc
"#;

const ON_A_MOUNT_PRINTS: &[&str] = &[
    "butternut quota status .: 0 Enabled:      no",
    "butternut quota enable M/a: 0 ",
    "butternut quota enable .: 0 ",
    "butternut qgroup create 1/7 .: 0 ",
    "butternut qgroup assign 0/256 1/7 .: 0 ",
    "butternut qgroup assign 0/257 1/7 .: 0 ",
    "butternut qgroup limit 5M 1/7 .: 0 ",
    "butternut qgroup limit -e 1G 1/7 a: 0 ",
    "butternut qgroup limit 6M a: 0 ",
    "\"max_referenced_bytes\":6291456",
    "butternut qgroup limit none M/a: 0 ",
    "butternut qgroup limit 6M open: 1 butternut: open: not a subvolume (`butternut subvolume \
     list` shows what there is)",
    "sh -c head -c 4M /dev/zero > b/more: 1 \
     head: error writing 'standard output': Disk quota exceeded",
    "butternut qgroup limit none 1/7 .: 0 ",
    "sh -c head -c 4M /dev/zero > b/more: 0 ",
    "butternut qgroup remove 0/256 1/7 .: 0 ",
    "butternut quota rescan .: 0 ",
    "butternut quota status .: 0 Enabled:      yes",
    "Mode:         full",
    "Inconsistent: no",
    "Groups:       5",
];

#[test]
fn quotas_of_a_mounted_volume_are_changed_by_its_process() {
    if !kernel_tests_enabled("quotas_of_a_mounted_volume_are_changed_by_its_process") {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    run("chmod", &["755", scratch.path().to_str().unwrap()].map(AsRef::as_ref));
    butternut(&["mkfs", "--size", "256M", image]).ok();
    butternut(&["mount", "-o", "allow_other", image, at]).ok();
    let printed = script_on_mount(at, ON_A_MOUNT, &[]);
    let of_one = butternut(&["qgroup", "show", "-F", "--sync", &format!("{at}/b")]).ok();
    assert_eq!(of_one.lines().count(), 4, "0/257 and 1/7: {of_one}");
    let subvolume = butternut(&["subvolume", "show", &format!("{at}/b")]).ok();
    assert!(subvolume.contains("\tQuota group:\t\t0/257\n"), "{subvolume}");
    let shown = ["-pcre", "--raw"].map(|form| butternut(&["qgroup", "show", form, at]).ok());
    let json = butternut(&["--json", "qgroup", "show", at]).ok();
    butternut(&["umount", "-q", at]).ok();
    let mut lines = printed.lines();
    for expected in ON_A_MOUNT_PRINTS {
        assert!(lines.any(|line| line == *expected), "{expected}\n{printed}");
    }
    for (command, why) in [
        ("butternut qgroup show .: 1", "quotas are disabled"),
        ("butternut qgroup create 1/7 .: 1", "disabled"),
        ("butternut qgroup create 1/7 .: 1", "quota group"),
        ("butternut qgroup limit 1M 1/8 a: 1", "quota group"),
        ("butternut qgroup create 7 .: 2", "LEVEL/NUMBER"),
        ("butternut quota status M: 1", "only its owner and root"),
        ("butternut quota disable M: 1", "only its owner and root"),
        ("butternut subvolume create -i 1/77 ./g: 1", "the quota groups of -i must exist"),
        ("butternut subvolume snapshot -i 0/256 a ./g: 1", "the quota groups of -i must exist"),
        ("ls -d g: 2", "No such file"),
        ("butternut quota status /proc: 1", "no butternut mount"),
    ] {
        let mut lines = printed.lines().zip(printed.lines().skip(1).chain([""]));
        let is_it = |(line, next): (&str, &str)| {
            line.contains(command) && (line.contains(why) || next.contains(why))
        };
        assert!(lines.any(is_it), "{command} {why}\n{printed}");
    }
    let offline = ["-pcre", "--raw"].map(|form| butternut(&["qgroup", "show", form, image]).ok());
    assert_eq!(shown, offline);
    assert_eq!(of_one, butternut(&["qgroup", "show", "-F", &format!("{image}@b")]).ok());
    assert_eq!(subvolume, butternut(&["subvolume", "show", image, "b"]).ok());
    assert_eq!(json, butternut(&["--json", "qgroup", "show", image]).ok());
    let report = run("btrfs", &["check", "--qgroup-report", image].map(AsRef::as_ref));
    assert!(report.contains("0/261"), "{report}");
    let counts = |prefix: &str| {
        let lines = report.lines().filter_map(|line| line.trim().strip_prefix(prefix));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(counts("our:"), counts("disk:"), "{report}");
    assert_eq!(counts("our:").len(), 16, "{report}");
}

/// As for [`script_on_mount`].
const SIMPLE_ON_A_MOUNT: &str = r#"
try "$B" quota enable .
try "$B" quota enable --simple .
try "$B" quota status .
head -c 3M /dev/urandom > one/file
cp --reflink=auto one/file two/file
"$B" subvolume snapshot one one/snap
"$B" subvolume create one/new
"$B" qgroup limit 8M 1/1 .
try sh -c 'head -c 9M /dev/urandom > one/new/more'
rm one/new/more
"$B" subvolume delete one/new
"$B" subvolume snapshot one ./kept
rm -r one/snap/file one/file
"$B" subvolume sync .
"#;

/// The kernel shows the same numbers, and `btrfs check` counts them from the extents.
#[test]
fn simple_quotas_count_what_subvolumes_allocate_offline_and_on_a_mount() {
    if !kernel_tests_enabled("simple_quotas_count_what_subvolumes_allocate_offline_and_on_a_mount")
    {
        return;
    }
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, at) = (scratch.path().join("volume.img"), scratch.path().join("at"));
    std::fs::create_dir(&at).unwrap();
    let _guard = MountGuard::before_mount(&at).unwrap();
    let (image, at) = (image.to_str().unwrap(), at.to_str().unwrap());
    let ok = |words: &[&str]| butternut(words).ok();
    ok(&["mkfs", "--size", "256M", image]);
    ok(&["subvolume", "create", image, "one", "two"]);
    ok(&["quota", "enable", "--simple", image]);
    let status = "Enabled:      yes\nMode:         simple\nInconsistent: no\nGroups:       3\n";
    assert_eq!(ok(&["quota", "status", image]), status);
    assert!(ok(&["--json", "quota", "status", image]).contains(r#""mode": "simple""#));
    let refused = butternut(&["quota", "enable", image]).failure();
    assert!(refused.contains("have simple ones, want disabled"), "{refused}");
    for group in ["1/1", "2/1"] {
        ok(&["qgroup", "create", group, image]);
    }
    ok(&["qgroup", "assign", "1/1", "2/1", image]);
    ok(&["qgroup", "assign", "0/256", "1/1", image]);
    let shown = ok(&["qgroup", "show", "--raw", image]);
    assert!(shown.lines().skip(2).all(|line| line.split_whitespace().nth(1) == Some("0")));

    ok(&["mount", image, at]);
    let printed = script_on_mount(at, SIMPLE_ON_A_MOUNT, &[]);
    ok(&["umount", "-q", at]);
    for line in [
        "butternut quota enable --simple .: 0 ",
        "Mode:         simple",
        "sh -c head -c 9M /dev/urandom > one/new/more: 1 \
         head: error writing 'standard output': Disk quota exceeded",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
    }
    ok(&["subvolume", "delete", image, "kept"]);
    ok(&["subvolume", "delete", image, "one/snap"]);
    ok(&["subvolume", "delete", image, "one"]);
    let report = run("btrfs", &["check", "--qgroup-report", image].map(AsRef::as_ref));
    let counts = |prefix: &str| {
        let lines = report.lines().filter_map(|line| line.trim().strip_prefix(prefix));
        let number = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
        lines.map(number).collect::<Vec<_>>()
    };
    assert_eq!(counts("our:"), counts("disk:"), "{report}");
    let ours = ok(&["qgroup", "show", "-prec", "--raw", image]);
    let words = |shown: &str| {
        let rows = shown.lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
        rows.collect::<Vec<Vec<String>>>()
    };
    shell(&format!("mount -o loop {image} {at}"));
    let theirs = shell(&format!("btrfs qgroup show -prec --raw {at}; umount {at}"));
    let (mut ours, mut theirs) = (words(&ours), words(&theirs));
    // Both name the groups above level 0 in words of their own.
    for rows in [&mut ours, &mut theirs] {
        rows.iter_mut().skip(2).for_each(|row| row.truncate(7));
    }
    assert_eq!(ours[2..], theirs[2..]);
    ok(&["quota", "disable", image]);
    run("btrfs", &["check", image].map(AsRef::as_ref));
}
