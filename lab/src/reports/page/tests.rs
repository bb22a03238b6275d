//! Tests of the page: complete, escaped, and without any address that is loaded.

use super::*;
use crate::made::{header, sample};
use crate::record::{Failure, Switches};

fn record() -> Record {
    let mut samples = Vec::new();
    for jobs in [1, 4, 16] {
        for (target, level) in [("butternut", 300.0), ("kernel:btrfs", 100.0)] {
            for repeat in 0..3 {
                let row = format!("s/own/jobs={jobs}");
                let mut sample = sample(&row, target, repeat, level + f64::from(jobs + repeat));
                sample.series = (0..5).map(|at| (f64::from(at), level)).collect();
                sample.percentiles.insert("50".to_owned(), 1e5);
                sample.percentiles.insert("99.9".to_owned(), 1e7);
                sample.peak_dirty_bytes = Some(3 << 20);
                samples.push(sample);
            }
        }
    }
    let run = header("a", "2026-01-02T03:04:05Z");
    Record { run, samples, failures: Vec::new(), end: None, notes: Vec::new() }
}

fn published() -> Vec<Published> {
    vec![Published {
        scenario: "s/own".to_owned(),
        variant: "jobs=4".to_owned(),
        metric: "iops".to_owned(),
        what: "kernel btrfs before".to_owned(),
        value: 202_000.0,
    }]
}

fn html(record: &Record) -> String {
    let contents = Contents {
        record,
        comparison: None,
        baseline: String::new(),
        published: &published(),
        history: &[],
        reference: "kernel:btrfs",
    };
    page(&contents).expect("a page")
}

#[test]
fn the_page_has_tables_charts_published_figures_and_the_command() {
    let page = html(&record());
    for want in [
        "Not compared",
        "The run is not complete.",
        "<th scope=\"col\">published: kernel btrfs before</th>",
        "202,000",
        "<b>2.96x</b>",
        "iops by jobs",
        "iops over time: jobs=16",
        "latency: jobs=4",
        "<span style=\"width:100%\"></span>3.0</td>",
        "butternut-lab run --suite=s --seed 1",
        "id=\"environment\"",
        "Copyright (c) 2022 Leon Sorokin",
    ] {
        assert!(page.contains(want), "{want}");
    }
    let ids = page.matches("class=\"chart\" id=\"chart-").count();
    assert_eq!((ids, page.matches("\"id\":\"chart-").count()), (7, 7));
    assert!(page.find("jobs=4</th>") < page.find("jobs=16</th>"), "numbers are in order");
}

#[test]
fn the_page_loads_nothing() {
    let page = html(&record());
    assert!(page.contains("default-src 'none'"));
    for tag in ["<link", "<img", "<iframe", " src=", "url(", "@import", "fetch(", "XMLHttpRequest"]
    {
        assert!(!page.contains(tag), "{tag}");
    }
    assert!(!page.contains("@BODY@") && !page.contains("@DATA@"));
}

#[test]
fn what_a_record_says_is_never_markup() {
    let evil = "</script><script>alert(1)</script>\"'@BODY@<b>";
    let mut record = record();
    record.run.suite = evil.to_owned();
    record.run.command = vec![evil.to_owned()];
    record.run.environment.kernel = evil.to_owned();
    for sample in &mut record.samples {
        sample.target = evil.to_owned();
        sample.row = format!("s/{evil}");
        sample.unit = evil.to_owned();
        sample.switches = Switches::from([(evil.to_owned(), evil.to_owned())]);
    }
    record.failures.push(Failure {
        row: evil.to_owned(),
        target: evil.to_owned(),
        switches: Switches::new(),
        repeat: 0,
        message: evil.to_owned(),
    });
    let page = html(&record);
    assert!(!page.contains("<script>alert"));
    assert_eq!(page.matches("</script>").count(), 3);
    assert_eq!(page.matches("<main id=\"main\">").count(), 1);
}
