//! What goes wrong during a run: a target that dies, a full disk, a full disk of the records. Each
//! is recorded or reported, and nothing is left behind.

use super::setting::{IMAGE, SUITE, Setting, kernel_tests_enabled, shell, signal};
use butternut_lab::record::Record;
use butternut_undo::MountGuard;

#[test]
fn a_mount_that_dies_is_a_failure_that_says_so() {
    if !kernel_tests_enabled("a_mount_that_dies_is_a_failure_that_says_so") {
        return;
    }
    let setting = Setting::new();
    setting.write("tiny.toml", &SUITE.replace("seconds = 1", "seconds = 60"));
    let mut run = setting.start(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 1 --no-warm-up --target mount"
    ));
    setting.wait_for_job();
    // The process of the mount has the mount point in its command line, as the watcher has.
    let daemons = setting.processes("butternut");
    let is_daemon = |pid: &&u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.contains("mount\0") && line.contains("allow_other")
    };
    let daemon = *daemons.iter().find(is_daemon).expect("the process of the mount");
    signal("KILL", daemon);
    assert_eq!(run.wait().unwrap().code(), Some(1));
    let record = setting.record();
    assert_eq!(record.failures.len(), 1);
    let message = &record.failures[0].message;
    assert!(message.contains("mount: the process of the mount has ended"), "{message}");
    assert!(record.is_complete() && record.samples.is_empty());
    assert!(setting.errors().contains("nothing could be measured"), "{}", setting.errors());
    setting.check_clean();
}

#[test]
fn a_job_that_is_killed_is_a_failure_and_the_run_goes_on() {
    if !kernel_tests_enabled("a_job_that_is_killed_is_a_failure_and_the_run_goes_on") {
        return;
    }
    let setting = Setting::new();
    let mut run =
        setting.start(&format!("run tiny.toml --device new.img:{IMAGE} --repeats 2 --no-warm-up"));
    signal("KILL", setting.wait_for_job());
    assert_eq!(run.wait().unwrap().code(), Some(1));
    let record = setting.record();
    let [failure] = &record.failures[..] else { panic!("{:?}", record.failures) };
    assert!(failure.message.contains("killed by signal 9"), "{}", failure.message);
    let end = record.end.unwrap();
    assert_eq!((end.planned, end.done), (2, 1));
    assert!(record.samples.iter().all(|sample| sample.repeat == 1));
    setting.check_clean();
}

#[test]
fn a_full_disk_is_a_failure_that_says_so() {
    if !kernel_tests_enabled("a_full_disk_is_a_failure_that_says_so") {
        return;
    }
    let setting = Setting::new();
    // The device has room for the files, but the filesystem that is mounted has not.
    setting.write(
        "small.toml",
        "name = \"small\"\nmount = \"mount -t tmpfs -o size=2M lab {path}\"\n\
         unmount = \"umount {path}\"\n",
    );
    setting.write(
        "tiny.toml",
        &SUITE.replace("metrics =", "lay-out = true\nmetrics =").replace(
            "rw = \"randwrite\"",
            "mode = \"buffered\"\noverwrite = true\nrw = \"randwrite\"",
        ),
    );
    let errors = setting.fail(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 1 --no-warm-up --target custom:small.toml"
    ));
    assert!(errors.contains("No space left on device"), "{errors}");
    let record = setting.record();
    assert!(record.failures[0].message.contains("laying out the files"), "{:?}", record.failures);
    assert!(record.is_complete());
    setting.check_clean();
}

#[test]
fn a_full_disk_of_the_records_leaves_whole_lines() {
    if !kernel_tests_enabled("a_full_disk_of_the_records_leaves_whole_lines") {
        return;
    }
    let setting = Setting::new();
    let history = setting.path("history");
    std::fs::create_dir(&history).unwrap();
    let guard = MountGuard::before_mount(&history).unwrap();
    // Two blocks are free: the first line fits, and the samples of a few repeats.
    shell(&format!(
        "mount -t tmpfs -o size=16k,nr_inodes=10 lab {0}; head -c 8k /dev/zero >{0}/full",
        history.display()
    ));
    let errors =
        setting.fail(&format!("run tiny.toml --device new.img:{IMAGE} --repeats 40 --no-warm-up"));
    assert!(errors.contains("cannot write the record"), "{errors}");
    std::fs::remove_file(history.join("full")).unwrap();
    let paths = setting.records();
    assert_eq!(paths.len(), 1);
    let text = std::fs::read_to_string(&paths[0]).unwrap();
    assert!(text.ends_with('\n'));
    let record = Record::read(&paths[0]).unwrap();
    assert!(record.notes.is_empty() && !record.is_complete() && !record.samples.is_empty());
    guard.unmount().unwrap();
    setting.check_clean();
}

#[test]
fn a_target_that_cannot_be_made_is_a_failure() {
    if !kernel_tests_enabled("a_target_that_cannot_be_made_is_a_failure") {
        return;
    }
    let setting = Setting::new();
    setting.write(
        "broken.toml",
        "name = \"broken\"\nmount = \"echo no such filesystem >&2; false\"\nunmount = \"true\"\n",
    );
    let errors = setting.fail(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 3 --no-warm-up \
         --target custom:broken.toml --target kernel:ext4:-Onosuchfeature --target raw"
    ));
    assert!(errors.contains("no such filesystem") && errors.contains("nosuchfeature"), "{errors}");
    let record = setting.record();
    // A cell that has failed twice is not repeated.
    assert_eq!(record.failures.len(), 4);
    assert_eq!(record.samples.iter().filter(|sample| sample.metric == "iops").count(), 3);
    setting.check_clean();
}
