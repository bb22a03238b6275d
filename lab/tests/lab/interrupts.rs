//! Interrupted runs: Ctrl-C, a termination, and a kill leave nothing behind, and the run continues
//! where it was.

use super::setting::{IMAGE, SUITE, Setting, kernel_tests_enabled, signal};
use butternut_lab::record::Record;
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

/// Several cells, so that a run can be interrupted between its first and its last.
fn several(setting: &Setting) {
    setting.write("tiny.toml", &SUITE.replace("[\"4k\"]", "[\"4k\", \"8k\", \"16k\"]"));
}

#[track_caller]
fn check_complete(record: &Record, cells: usize, metrics: usize) {
    assert!(record.is_complete());
    let keys: BTreeSet<_> =
        record.samples.iter().map(|sample| (format!("{}", sample.cell()), sample.repeat)).collect();
    assert_eq!((keys.len(), record.samples.len()), (cells * metrics, cells * metrics));
    let orders: BTreeSet<_> = record.samples.iter().map(|sample| sample.order).collect();
    assert_eq!(orders.len(), cells, "each measurement has a place of its own");
}

#[test]
fn an_interrupted_run_cleans_up_and_continues() {
    if !kernel_tests_enabled("an_interrupted_run_cleans_up_and_continues") {
        return;
    }
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let setting = Setting::new();
        several(&setting);
        // The last target is a mount, so that there is something to clean up.
        let words = format!(
            "run tiny.toml --device new.img:{IMAGE} --repeats 1 --no-warm-up \
             --target kernel:ext4 --target mount"
        );
        let mut run = setting.start(&words);
        setting.wait_until("two samples are recorded", || {
            let records = setting.records();
            let text = records.first().map(std::fs::read_to_string);
            text.is_some_and(|text| text.unwrap().matches("\"metric\":\"iops\"").count() >= 2)
        });
        setting.wait_for_job();
        signal(name, run.id());
        assert_eq!(run.wait().unwrap().signal(), Some(number), "{}", setting.errors());
        setting.check_clean();
        let record = setting.record();
        assert!(!record.is_complete() && record.notes.is_empty());
        let id = record.run.id.clone();
        let errors = setting.errors();
        assert!(errors.contains(&format!("run --resume {id} --history history")), "{errors}");
        assert!(errors.contains("interrupted"), "{errors}");
        setting.succeed(&format!("run --resume {id}"));
        check_complete(&setting.record(), 6, 4);
        let errors = setting.fail(&format!("run --resume {id}"));
        assert!(errors.contains("the run is complete"), "{errors}");
        setting.check_clean();
    }
}

#[test]
fn a_killed_run_leaves_nothing_and_continues() {
    if !kernel_tests_enabled("a_killed_run_leaves_nothing_and_continues") {
        return;
    }
    let setting = Setting::new();
    several(&setting);
    let mut run = setting.start(&format!(
        "run tiny.toml --device new.img:{IMAGE} --repeats 1 --no-warm-up --target kernel:ext4"
    ));
    setting.wait_for_job();
    signal("KILL", run.id());
    run.wait().unwrap();
    setting.check_clean();
    let path = &setting.records()[0];
    let id = setting.record().run.id;
    // The last line may be torn.
    let mut torn = std::fs::read_to_string(path).unwrap();
    torn.push_str("{\"kind\":\"sample\",\"row\":\"ti");
    std::fs::write(path, torn).unwrap();
    let mut command = setting.command(&format!("run --resume {id}"));
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.contains("torn by a crash"), "{errors}");
    let record = setting.record();
    assert!(record.notes.is_empty());
    check_complete(&record, 3, 4);
    setting.check_clean();
}

#[test]
fn a_run_is_not_continued_in_another_environment() {
    if !kernel_tests_enabled("a_run_is_not_continued_in_another_environment") {
        return;
    }
    let setting = Setting::new();
    several(&setting);
    let mut run =
        setting.start(&format!("run tiny.toml --device new.img:{IMAGE} --repeats 1 --no-warm-up"));
    setting.wait_until("a sample is recorded", || {
        let records = setting.records();
        let text = records.first().map(std::fs::read_to_string);
        text.is_some_and(|text| text.unwrap().contains("\"metric\":\"iops\""))
    });
    // A run that is measured is not continued by a second process.
    let id = setting.record().run.id;
    let errors = setting.fail(&format!("run --resume {id}"));
    assert!(errors.contains("another process writes this run"), "{errors}");
    signal("INT", run.id());
    run.wait().unwrap();
    let path = &setting.records()[0];
    let kernel = setting.record().run.environment.kernel;
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, text.replace(&kernel, "2.6.32")).unwrap();
    let errors = setting.fail(&format!("run --resume {id}"));
    assert!(errors.contains(&format!("kernel: had 2.6.32, have {kernel}")), "{errors}");
    std::fs::write(path, text).unwrap();
    // The rows of the record must be those of the suite.
    setting.write("tiny.toml", &SUITE.replace("\"write\"", "\"other\""));
    let errors = setting.fail(&format!("run --resume {id}"));
    assert!(errors.contains("not in the suite any more"), "{errors}");
    setting.check_clean();
}
