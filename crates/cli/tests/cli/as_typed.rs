//! Command lines as users of other programs type them.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use super::command::{CommandOutput, butternut, command, run, shell};
use super::image::plain;

fn on_plain(line: &str) -> CommandOutput {
    let image = plain().0.to_str().unwrap();
    butternut(&line.split(' ').map(|w| if w == "IMG" { image } else { w }).collect::<Vec<_>>())
}

/// A volume with files of several sizes and ages, and the directory that it was made from.
fn volume() -> (TempDir, String) {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = scratch.path().join("a.img").to_str().unwrap().to_owned();
    shell(&format!(
        "cd {}; mkdir -p tree/Sub/deep; cd tree
         head -c 3000 /dev/zero > b.Log; head -c 512 /dev/zero > c.log; : > a; echo x > .hidden
         head -c 1500000 /dev/zero > Sub/big.log; echo y > Sub/deep/y
         ln -s b.Log link; touch -d '3 days ago 1 hour ago' a; touch -d '10 days ago' c.log
         touch -d '1 hour ago' b.Log Sub/big.log",
        scratch.path().display()
    ));
    let tree = scratch.path().join("tree");
    butternut(&["mkfs", "-q", "--rootdir", tree.to_str().unwrap(), &image]).ok();
    (scratch, image)
}

#[test]
fn ls_has_the_options_of_ls() {
    let (_scratch, image) = volume();
    let names = |options: &str| {
        let mut words = vec!["ls"];
        words.extend(options.split_whitespace());
        words.push(&image);
        let text = butternut(&words).ok();
        text.lines().map(|l| l.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("-1"), "Sub a b.Log c.log link");
    assert_eq!(names("-A"), ".hidden Sub a b.Log c.log link");
    assert!(names("-lah").starts_with(". .. .hidden Sub"));

    let by_time = names("-t");
    assert!(by_time.ends_with("b.Log a c.log"), "{by_time}");
    assert!(names("-tr").starts_with("c.log a b.Log"));
    let by_size = names("-S");
    assert!(by_size.starts_with("b.Log c.log "), "{by_size}");
    assert!(names("-Sr").ends_with(" c.log b.Log"));
    let long = butternut(&["ls", "-lh", &image, "Sub"]).ok();
    assert!(long.contains(" 1.5M ") && long.contains(" big.log"), "{long}");
    assert_eq!(butternut(&["ls", "-lH", &image, "Sub"]).ok(), long);
    assert_eq!(butternut(&["ls", "-nh", &image, "Sub"]).ok(), long);
    let help = butternut(&["ls", "--help"]).ok();
    assert!(help.contains("-h, --human") && help.contains("--help"), "{help}");
}

#[test]
fn ls_takes_several_paths() {
    let (_scratch, image) = volume();
    let listed = butternut(&["ls", &image, "Sub/deep", "c.log", "Sub", "a"]).ok();
    assert_eq!(listed, "a\nc.log\n\nSub:\nbig.log\ndeep\n\nSub/deep:\ny\n");
    assert_eq!(butternut(&["ls", "-d", &image, "Sub", "a"]).ok(), "Sub\na\n");
    let ran = butternut(&["ls", &image, "none", "a"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "a\n"));
    assert!(ran.err.starts_with("butternut: none: no such file"), "{}", ran.err);
    let recursive = butternut(&["ls", "-R", &image, "Sub", "a"]).ok();
    assert_eq!(recursive, "a\n\nSub:\nbig.log\ndeep\n\nSub/deep:\ny\n");
    let json = butternut(&["--json", "ls", &image, "a", "Sub"]).ok();
    let json: Vec<Value> = serde_json::from_str(&json).unwrap();
    let paths: Vec<_> = json.iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["a", "Sub/big.log", "Sub/deep"]);
}

/// Each line is given to find(1) and to our `find`, which print the same.
#[test]
fn find_has_the_tests_of_find() {
    let (scratch, image) = volume();
    let tree = scratch.path().join("tree");
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.split(['\n', '\0']).map(str::to_owned).collect();
        lines.sort();
        lines.join("\n")
    };
    for tests in [
        "-name *.log",
        "-iname *.LOG",
        "-path */deep*",
        "-type f -size +2",
        "-type f -size -3k",
        "-type f -size 512c",
        "-type f -size 1",
        "-type f -size +1M",
        "-type f -mtime +5",
        "-type f -mtime -1",
        "-type f -mtime 3",
        "-type f -mtime 10 -name c*",
        "-maxdepth 1 -type d,l",
        "-mindepth 2 -print0",
        "-xdev -print",
    ] {
        let words: Vec<&str> = tests.split(' ').collect();
        let mut find = std::process::Command::new("find");
        let theirs = find.current_dir(&tree).arg(".").args(&words).output().unwrap();
        let theirs = String::from_utf8(theirs.stdout).unwrap();
        let ours = butternut(&[&["find", &image, "."][..], &words].concat()).ok();
        assert_eq!(sorted(&ours), sorted(&theirs), "{tests}");
    }
    let listed = butternut(&["find", &image, "-name", "link", "-ls"]).ok();
    assert!(
        listed.contains(" lrwxrwxrwx   1 ") && listed.ends_with(" /link -> b.Log\n"),
        "{listed}"
    );
    for (wrong, want) in [("-size", "-size: \"+x\" is"), ("-mtime", "-mtime: \"x\" is not")] {
        let said = butternut(&["find", &image, wrong, "+x"]).failure();
        assert!(said.starts_with(&format!("butternut: {want}")), "{said}");
    }
    // The long options keep their meaning.
    let found = butternut(&["find", &image, "--size", "+512", "--type", "f"]).ok();
    assert_eq!(sorted(found.trim_end()), "/Sub/big.log\n/b.Log\n/c.log");
}

#[test]
fn help_of_a_command_is_its_help() {
    for line in ["help ls", "help subvolume snapshot", "help", "-q help find"] {
        let words = line.split(' ').filter(|word| *word != "help" && *word != "-q");
        let words: Vec<&str> = words.chain(["--help"]).collect();
        assert_eq!(on_plain(line).ok(), butternut(&words).ok(), "{line}");
    }
    let ran = on_plain("help frob");
    assert_eq!(ran.code, Some(2));
}

#[test]
fn first_words_of_other_programs_find_their_way() {
    for name in ["df", "du", "usage"] {
        let long = on_plain(&format!("filesystem {name} IMG")).ok();
        assert_eq!(on_plain(&format!("{name} IMG")).ok(), long);
    }
    for (name, hint) in [("restore", "butternut export"), ("scrub", "butternut check")] {
        let ran = on_plain(&format!("{name} IMG out"));
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
        assert!(ran.err.starts_with(&format!("butternut: {name}: is not a command (")));
        assert!(ran.err.contains(hint), "{}", ran.err);
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("a.img");
    fs::copy(&plain().0, &image).unwrap();
    let outside = scratch.path().join("file").to_str().unwrap().to_owned();
    fs::write(&outside, "").unwrap();
    let image = image.to_str().unwrap();
    let said = butternut(&["cp", image, &outside, "/x"]).failure();
    assert!(said.ends_with("(cp copies inside the volume; `butternut import` copies into it)"));
    let said = butternut(&["cp", image, "hello.txt", &format!("{outside}.2")]).failure();
    assert!(said.ends_with("`butternut export` copies out of it)"), "{said}");
}

#[test]
fn options_of_btrfs_are_accepted_or_have_a_reason() {
    let (_scratch, image) = volume();
    let run = |line: &str| {
        let words = line.split(' ').map(|word| if word == "IMG" { &image } else { word });
        butternut(&words.collect::<Vec<_>>())
    };
    for line in [
        "subv create IMG s1 s2 s3",
        "sub del -c IMG s1",
        "su delete -C IMG s2",
        "fi defrag -rvf IMG /Sub",
        "quota enable IMG",
        "quota rescan -w IMG",
        "qgroup create 1/1 IMG",
        "qgroup assign --no-rescan 0/258 1/1 IMG",
        "qgroup limit -c 1G 0/258 IMG",
        "subvolume list --sort=gen,-path IMG",
        "fi us IMG",
        "inspect-internal rootid IMG /s3",
    ] {
        let ran = run(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
    }
    for (line, want) in [
        ("subvolume create -p IMG x/y", "'-p' found (`butternut mkdir -p`"),
        ("sub del --dry-run IMG c", "'--dry-run' found (`butternut subvolume list -o`"),
        ("subvolume show -r 256 IMG", "'-r' found (name the subvolume by its id"),
        ("subvolume find-new IMG 5", "(`butternut find --mtime`"),
        ("send -f x IMG a b", "'b' found (send each subvolume by a command"),
        ("defragment --step 1M IMG /", "'--step' found (files are written in steps"),
        ("qgroup clear-stale IMG", "(the next commit removes the groups"),
        ("quota rescan -s IMG", "'-s' found (`butternut quota status`"),
        ("property list IMG", "(`butternut property get` prints all"),
        ("cp -a IMG Sub x", "'-a' found (a directory is copied with"),
        ("ls -y IMG", "'-y' found"),
        ("mkswapfile x", "mkswapfile: is not a command (`butternut filesystem mkswapfile`"),
        ("property get IMG / label", "label: is no property of a subvolume (`butternut filesys"),
        ("qgroup create 100 IMG", "100: not a quota group (name it LEVEL/NUMBER: the group of"),
        (
            "qgroup limit 1G IMG c",
            "not a quota group (name it LEVEL/NUMBER, for example 1/100; a s",
        ),
        ("subvolume set-default 256 IMG", "256: is an id, not a volume (the volume is first: `b"),
        ("export --include [ IMG / x", "--include: \"[\": no ] closes [ ("),
        ("export --newer yesterday IMG / x", "--newer: \"yesterday\" is neither"),
    ] {
        let ran = run(line);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{line}: {}", ran.err);
        assert!(ran.err.contains(want) && !ran.err.contains("as a value"), "{line}: {}", ran.err);
    }
}

#[test]
fn defragment_takes_the_algorithm_as_btrfs_does() {
    let (_scratch, image) = volume();
    for form in ["--compress zstd", "--compress=zstd", "-czstd", "--compress zstd:9"] {
        let mut words = vec!["defragment", "-r"];
        words.extend(form.split(' '));
        words.extend([image.as_str(), "/"]);
        let ran: CommandOutput = command().args(&words).output().unwrap().into();
        assert!(ran.ok().starts_with("files: "), "{form}");
        let stat = butternut(&["--json", "stat", "-e", &image, "Sub/big.log"]).ok();
        assert!(stat.contains("zstd"), "{form}: {stat}");
    }
    run("btrfs", &["check", &image].map(AsRef::as_ref));
}
