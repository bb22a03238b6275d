//! What a run refuses before it writes anything: devices that hold something or are in use, missing
//! tools, debug builds, too little space or memory.

use super::setting::{
    IMAGE, SUITE, Setting, checksum, errors_of_failure, kernel_tests_enabled, shell,
};
use butternut_undo::{LoopGuard, MountGuard};
use std::os::unix::fs::FileExt;

#[test]
fn a_device_that_holds_a_filesystem_is_refused_unless_it_is_named_twice() {
    if !kernel_tests_enabled("a_device_that_holds_a_filesystem_is_refused_unless_it_is_named_twice")
    {
        return;
    }
    let setting = Setting::new();
    let image = setting.image("own.img");
    for (mkfs, kind) in
        [("mkfs.ext4 -q -F", "ext4"), ("mkfs.btrfs -q -f", "btrfs"), ("mkswap", "swap")]
    {
        shell(&format!("{mkfs} {}", image.display()));
        let before = checksum(&image);
        // As a file, as a block device, and as the image of each target.
        for words in
            ["--device own.img", "--target butternut:own.img", "--target kernel:xfs@own.img"]
        {
            let errors = setting.fail(&format!("run tiny.toml {words}"));
            assert!(errors.contains(kind) && errors.contains("--destroy own.img"), "{errors}");
        }
        let device = LoopGuard::attach(&image, &[]).unwrap();
        let device = device.path().display();
        let errors = setting.fail(&format!("run tiny.toml --device {device}"));
        assert!(errors.contains(kind) && errors.contains("--destroy"), "{errors}");
        assert_eq!(checksum(&image), before, "{kind}: nothing is written");
    }
    assert!(setting.records().is_empty());
    setting.succeed("run tiny.toml --device own.img --destroy own.img --repeats 1 --no-warm-up");
    setting.check_clean();
}

#[test]
fn a_partition_table_is_refused() {
    if !kernel_tests_enabled("a_partition_table_is_refused") {
        return;
    }
    let setting = Setting::new();
    let image = setting.image("own.img");
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    // A partition of type 0x83 that starts at sector 2048 and has 4096 sectors; the signature.
    let entry = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0];
    file.write_all_at(&entry, 446).unwrap();
    file.write_all_at(&[0x55, 0xAA], 510).unwrap();
    let errors = setting.fail("run tiny.toml --device own.img");
    assert!(errors.contains("partition table (dos)"), "{errors}");
}

#[test]
fn a_device_in_use_is_refused_even_if_it_is_named_twice() {
    if !kernel_tests_enabled("a_device_in_use_is_refused_even_if_it_is_named_twice") {
        return;
    }
    let setting = Setting::new();
    let image = setting.image("own.img");
    shell(&format!("mkfs.ext4 -q -F {}", image.display()));
    let device = LoopGuard::attach(&image, &[]).unwrap();
    let shown = device.path().display().to_string();
    let errors = setting.fail("run tiny.toml --device own.img --destroy own.img");
    assert!(errors.contains(&format!("attached to {shown}")), "{errors}");
    let point = setting.path("mnt");
    std::fs::create_dir(&point).unwrap();
    let guard = MountGuard::before_mount(&point).unwrap();
    shell(&format!("mount {shown} {}", point.display()));
    let errors = setting.fail(&format!("run tiny.toml --device {shown} --destroy {shown}"));
    assert!(errors.contains(&format!("mounted on {}", point.display())), "{errors}");
    guard.unmount().unwrap();
    assert!(setting.records().is_empty());
}

#[test]
fn missing_tools_are_named_together() {
    let setting = Setting::new();
    let mut command = setting.command("run tiny.toml --target kernel:xfs --target butternut");
    std::fs::create_dir(setting.path("empty")).unwrap();
    command.env("PATH", setting.path("empty")).env("BUTTERNUT_FIO", "fio-of-nowhere");
    command.env("BUTTERNUT_FIO_ENGINE", "engine-of-nowhere.so");
    let errors = errors_of_failure("run", &command.output().unwrap());
    for tool in ["fio-of-nowhere", "setpriv (apt-get install util-linux)", "libbutternut_fio.so"] {
        assert!(errors.contains("missing: ") && errors.contains(tool), "{tool}: {errors}");
    }
    assert!(setting.records().is_empty());
    setting.check_clean();
}

#[test]
fn a_debug_build_is_refused() {
    let setting = Setting::new();
    // This program is one, like the programs of every test.
    let mut command = setting.command("list");
    assert!(command.output().unwrap().status.success());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_butternut-lab"));
    let words = ["run", "tiny.toml", "--target", "dir:.", "--history", "history"];
    command.current_dir(setting.path("")).args(words);
    let errors = errors_of_failure("run", &command.output().unwrap());
    assert!(errors.contains("a debug build (build it with --release"), "{errors}");
    assert!(setting.records().is_empty());
}

#[test]
fn too_little_space_or_memory_is_refused() {
    if !kernel_tests_enabled("too_little_space_or_memory_is_refused") {
        return;
    }
    let setting = Setting::new();
    let errors = setting.fail(&format!("run tiny.toml --set size=1G --device new.img:{IMAGE}"));
    assert!(errors.contains("not enough space: 1 GiB needed, 320 MiB"), "{errors}");
    let errors = setting.fail("run tiny.toml --set size=1000T --target dir:.");
    assert!(errors.contains("not enough space: 1000 TiB needed"), "{errors}");
    let errors = setting.fail("run tiny.toml --set size=1000T");
    assert!(errors.contains("not enough memory for a device in memory"), "{errors}");
    // Without --sparse, an image is not made where it does not fit.
    for (device, want) in
        [("memory:1000T", "not enough memory"), ("new.img:1000T", "not enough space")]
    {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_butternut-lab"));
        command.current_dir(setting.path("")).args(["run", "tiny.toml", "--allow-debug"]);
        command.args(["--device", device, "--history", "history"]);
        let errors = errors_of_failure(device, &command.output().unwrap());
        assert!(errors.contains(want), "{errors}");
    }
    setting.write("tiny.toml", &SUITE.replace("seconds = 1", "seconds = 1\nmemory = \"1000T\""));
    let errors = setting.fail(&format!("run tiny.toml --device new.img:{IMAGE}"));
    assert!(errors.contains("memory limit of 1000 TiB: the machine has"), "{errors}");
    assert!(setting.records().is_empty());
    setting.check_clean();
}

#[test]
fn wrong_words_are_named() {
    let setting = Setting::new();
    setting.write(
        "bad.toml",
        &SUITE.replace("iodepth", "seconds = 3\niodetph").replace("rw =", "wr ="),
    );
    setting.write("key.toml", &SUITE.replace("[[scenario]]", "[[scenario]]\nlayout = true"));
    for (words, want) in [
        ("run bad.toml", "bad.toml: scenario \"write\": job \"writer\": rw: missing"),
        ("run key.toml", "unknown field `layout`"),
        ("run none.toml", "none.toml: cannot read the suite"),
        ("run --suite nosuch", "use one of published, nosec"),
        ("run tiny.toml --target disk", "target \"disk\": want raw, kernel:FS"),
        ("run tiny.toml --target kernel:zfs", "filesystem \"zfs\": want one of btrfs, xfs, ext4"),
        ("run tiny.toml --target dir:nowhere", "dir:nowhere: not a directory"),
        ("run tiny.toml --target custom:none.toml", "none.toml: cannot be read"),
        ("run tiny.toml --target raw --target raw", "target raw: named twice"),
        ("run tiny.toml --only nothing", "no row of tiny contains \"nothing\""),
        ("run tiny.toml --switch nosec", "--switch \"nosec\": want NAME=VALUE"),
        ("run tiny.toml --time 3d", "time \"3d\": want 90s, 10m or 2h"),
        ("run tiny.toml --repeats 0", "--repeats: have 0"),
        ("run --resume nothing", "cannot open the record"),
        ("run --resume ../x", "run id"),
        ("show nosuch", "use one of"),
    ] {
        let errors = setting.fail(words);
        assert!(errors.contains(want), "{words}: {errors}");
        assert!(errors.starts_with("butternut-lab: "), "{words}: {errors}");
    }
    assert!(setting.records().is_empty());
    setting.check_clean();
}
