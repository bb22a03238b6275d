//! Runs that succeed: what is recorded, on each kind of target, in which order, and that nothing is
//! left behind.

use super::setting::{IMAGE, SUITE, Setting, kernel_tests_enabled, shell};
use std::collections::BTreeSet;

#[test]
fn a_run_on_a_device_is_recorded_from_its_first_line_to_its_last() {
    if !kernel_tests_enabled("a_run_on_a_device_is_recorded_from_its_first_line_to_its_last") {
        return;
    }
    let setting = Setting::new();
    let printed = setting.succeed(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 2 --seed 7 --no-warm-up"
    ));
    assert!(printed.contains("tiny/write/block=4k") && printed.contains("n=2"), "{printed}");
    let record = setting.record();
    assert!(record.notes.is_empty());
    assert_eq!((record.run.seed, record.run.suite.as_str()), (7, "tiny"));
    assert!(!record.run.environment.kernel.is_empty() && record.run.environment.cores > 0);
    assert_eq!(record.run.environment.device.size_bytes, 320 << 20);
    assert_eq!(record.run.environment.build_profile, "debug");
    let end = record.end.as_ref().unwrap();
    assert_eq!((end.planned, end.done), (2, 2));
    // Two repeats of four metrics.
    assert_eq!(record.samples.len(), 8);
    let sample = &record.samples[0];
    assert_eq!((sample.row.as_str(), sample.target.as_str()), ("tiny/write/block=4k", "raw"));
    assert_eq!((sample.metric.as_str(), sample.unit.as_str()), ("iops", "1/s"));
    assert!(sample.value > 0.0 && sample.seconds > 0.5);
    assert!(
        sample.percentiles["50"] > 0.0 && sample.percentiles["99.9"] >= sample.percentiles["50"]
    );
    assert!(sample.device_write_bytes.unwrap() > 0 && sample.cpu_us_per_op.unwrap() > 0.0);
    assert!(!setting.path("new.img").exists());
    setting.check_clean();
}

#[test]
fn the_mounted_targets_are_measured_and_removed() {
    if !kernel_tests_enabled("the_mounted_targets_are_measured_and_removed") {
        return;
    }
    let setting = Setting::new();
    setting.write(
        "shm.toml",
        "name = \"shm\"\nneeds = [\"mount\"]\n\
         mount = \"mount -t tmpfs -o size=64M lab {path}\"\nunmount = \"umount {path}\"\n",
    );
    std::fs::create_dir(setting.path("dir")).unwrap();
    // tmpfs has no direct I/O on all kernels.
    setting.write("tiny.toml", &SUITE.replace("rw =", "mode = \"buffered\"\nrw ="));
    setting.succeed(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 1 --no-warm-up --target kernel:btrfs \
         --target kernel:xfs --target kernel:ext4:-O^has_journal;noatime,nobarrier --target mount \
         --target custom:shm.toml --target dir:dir"
    ));
    let record = setting.record();
    let targets: BTreeSet<_> = record.samples.iter().map(|sample| &*sample.target).collect();
    let expected = [
        "custom:shm",
        "dir:dir",
        "kernel:btrfs",
        "kernel:ext4:-O^has_journal;noatime,nobarrier",
        "kernel:xfs",
        "mount",
    ];
    assert_eq!(targets, expected.into_iter().collect());
    assert!(record.run.environment.versions.contains_key("xfsprogs"));
    assert_eq!(std::fs::read_dir(setting.path("dir")).unwrap().count(), 0);
    setting.check_clean();
}

#[test]
fn each_value_of_a_switch_is_measured_by_the_fio_engine() {
    if !kernel_tests_enabled("each_value_of_a_switch_is_measured_by_the_fio_engine") {
        return;
    }
    if !has_engine() {
        eprintln!("left out: the fio engine is not built (BUTTERNUT_FIO_PROFILE=dev scripts/fio)");
        return;
    }
    let setting = Setting::new();
    let image = setting.image("own.img").display().to_string();
    setting.succeed(&format!(
        "run tiny.toml --target butternut:{image} --switch nosec=on,off --switch buffers=owned \
         --repeats 1 --no-warm-up"
    ));
    let record = setting.record();
    let switches: BTreeSet<_> =
        record.samples.iter().map(|sample| format!("{:?}", sample.switches)).collect();
    let expected = [
        r#"{"buffers": "owned", "nosec": "off"}"#.to_owned(),
        r#"{"buffers": "owned", "nosec": "on"}"#.to_owned(),
    ];
    assert_eq!(switches, expected.into_iter().collect());
    assert!(record.samples[0].peak_cached_bytes.is_some());
    // The engine leaves a sound volume in the image.
    shell(&format!("btrfs check --check-data-csum {image}"));
    setting.check_clean();
}

/// Whether the engine is where the program looks for it.
fn has_engine() -> bool {
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_butternut-lab"));
    let beside = beside.with_file_name("libbutternut_fio.so");
    let named = std::env::var_os("BUTTERNUT_FIO_ENGINE").map(Into::into);
    let engine = std::fs::read(named.unwrap_or(beside)).unwrap_or_default();
    // A library without the part that is compiled with fio's headers is no engine.
    engine.windows(10).any(|bytes| bytes == b"\0ioengine\0")
}

#[test]
fn a_memory_limit_applies_and_its_group_is_removed() {
    if !kernel_tests_enabled("a_memory_limit_applies_and_its_group_is_removed") {
        return;
    }
    let setting = Setting::new();
    let suite = SUITE
        .replace("seconds = 1", "seconds = 1\nmemory = \"48M\"")
        .replace("size = \"4M\"", "size = \"2x memory\"")
        .replace("metrics = [", "timed = false\nmetrics = [\"peak-cached\", ")
        .replace("rw = \"randwrite\"", "rw = \"write\"\nmode = \"buffered\"")
        .replace("4k", "64k");
    setting.write("tiny.toml", &suite);
    setting.succeed(
        "run tiny.toml --device new.img:512M --repeats 1 --no-warm-up --target kernel:ext4",
    );
    let record = setting.record();
    assert_eq!(record.samples[0].metric, "peak-cached");
    let process = record.run.id.rsplit('-').next().unwrap();
    let groups = shell("find /sys/fs/cgroup -maxdepth 3 -name 'butternut-lab-*'");
    let own = format!("butternut-lab-{process}");
    assert!(!groups.lines().any(|group| group.ends_with(&own)), "{groups}");
    setting.check_clean();
}

#[test]
fn small_files_are_measured_by_the_driver_of_the_lab() {
    if !kernel_tests_enabled("small_files_are_measured_by_the_driver_of_the_lab") {
        return;
    }
    let setting = Setting::new();
    setting.succeed(&format!(
        "run --suite metadata --set files=200 --device new.img:{IMAGE} --repeats 1 --no-warm-up \
         --target kernel:btrfs --target mount --only threads=8"
    ));
    let record = setting.record();
    let metrics: BTreeSet<_> = record.samples.iter().map(|sample| &*sample.metric).collect();
    assert_eq!(metrics.len(), 6, "{metrics:?}");
    assert_eq!(record.samples.len(), 12);
    assert!(record.samples.iter().all(|sample| sample.value > 0.0 && sample.unit == "files/s"));
    setting.check_clean();
}

#[test]
fn servers_of_fio_run_the_jobs_together() {
    if !kernel_tests_enabled("servers_of_fio_run_the_jobs_together") {
        return;
    }
    let setting = Setting::new();
    std::fs::create_dir(setting.path("dir")).unwrap();
    setting.write("tiny.toml", &SUITE.replace("file =", "files ="));
    let servers = ["a", "b"].map(|name| setting.fio_server(name));
    let sockets = servers.each_ref().map(|server| format!("sock:{}", server.socket().display()));
    let [a, b] = &sockets;
    setting.succeed(&format!(
        "run tiny.toml --target dir:dir --remote {a} --remote {b} --repeats 1 --no-warm-up"
    ));
    let record = setting.record();
    assert_eq!(record.samples.len(), 4);
    assert!(record.samples.iter().all(|sample| sample.value >= 0.0));
    for (words, want) in [
        ("--target raw", "target raw: want dir:PATH"),
        ("--suite metadata --target dir:dir", "fio does not drive it"),
        ("--suite fsync --target dir:dir", "has a memory limit (--memory none)"),
    ] {
        let suite = if words.contains("--suite") { "" } else { "tiny.toml" };
        let errors = setting.fail(&format!("run {suite} {words} --remote {a}"));
        assert!(errors.contains(want), "{words}: {errors}");
    }
    drop(servers);
    assert_eq!(std::fs::read_dir(setting.path("dir")).unwrap().count(), 0);
    setting.check_clean();
}

#[test]
fn a_seed_decides_the_order_of_the_measurements() {
    if !kernel_tests_enabled("a_seed_decides_the_order_of_the_measurements") {
        return;
    }
    let order = |seed: u32| {
        let setting = Setting::new();
        setting
            .write("tiny.toml", &SUITE.replace("[\"4k\"]", "[\"4k\", \"8k\", \"16k\", \"32k\"]"));
        setting.succeed(&format!(
            "run tiny.toml --device new.img:{IMAGE} --repeats 1 --seed {seed} --no-warm-up --json"
        ));
        let record = setting.record();
        let first = record.samples.into_iter().filter(|sample| sample.metric == "iops");
        first.map(|sample| sample.row).collect::<Vec<_>>()
    };
    let (one, again, other) = (order(1), order(1), order(3));
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[test]
fn a_time_budget_ends_a_run_with_a_complete_record() {
    if !kernel_tests_enabled("a_time_budget_ends_a_run_with_a_complete_record") {
        return;
    }
    let setting = Setting::new();
    let printed = setting.succeed(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 1000 --time 3s --no-warm-up --json"
    ));
    assert!(printed.contains("\"median\""), "{printed}");
    let record = setting.record();
    let end = record.end.unwrap();
    assert!(end.done >= 1 && end.done < 1000, "{end:?}");
    setting.check_clean();
}
