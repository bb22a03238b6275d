//! Every crash of a workload: the medium is free of damage, and holds the items of one commit, none
//! older than the last that returned.

use super::{Items, VOLUME_BYTES, is_long, items, open, step};
use anyhow::{Result, ensure};
use butternut_device::{CrashOptions, Device, RecordingDevice};
use butternut_mkfs::MkfsOptions;
use butternut_sim::crash::{JudgeOptions, Story, StoryBuilder, Verdict, judge};
use butternut_sim::random::Random;
use butternut_sim::volume::{check, check_crashed, fresh, is_super_block};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn record(seed: u64, base: Arc<dyn Device>, steps: usize) -> Result<(Story, Vec<Items>)> {
    let device = Arc::new(RecordingDevice::new(base));
    let forest = open(Arc::<RecordingDevice>::clone(&device))?;
    let (mut random, mut builder) = (Random::new(seed), StoryBuilder::default());
    let mut states = vec![Items::new()];
    for _ in 0..steps {
        let mut state = states.last().expect("the first one").clone();
        builder.begin_step(&device);
        if random.one_in(5) {
            forest.commit()?;
            builder.mark_all_durable(&device);
        } else {
            step(&forest, &mut random, &mut state)?;
        }
        ensure!(items(&forest)? == state, "seed {seed}, before a crash");
        states.push(state);
    }
    Ok((builder.end(&device), states))
}

/// Runs a workload in which one thread changes items and another commits all the time.
fn record_with_committer(
    seed: u64,
    base: Arc<dyn Device>,
    steps: usize,
) -> Result<(Story, Vec<Items>)> {
    let device = Arc::new(RecordingDevice::new(base));
    let forest = open(Arc::<RecordingDevice>::clone(&device))?;
    let builder = Mutex::new(StoryBuilder::default());
    let ended = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let mut states = vec![Items::new()];
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let steps = ended.load(Ordering::SeqCst);
                forest.commit()?;
                builder.lock().expect("no thread panics").mark_steps_durable(&device, steps);
            }
            Ok::<(), butternut_tree::TreeError>(())
        });
        let mut random = Random::new(seed);
        for _ in 0..steps {
            let mut state = states.last().expect("the first one").clone();
            builder.lock().expect("no thread panics").begin_step(&device);
            step(&forest, &mut random, &mut state)?;
            ended.fetch_add(1, Ordering::SeqCst);
            states.push(state);
        }
        is_over.store(true, Ordering::SeqCst);
        committer.join().expect("the committer does not panic")?;
        Ok::<(), anyhow::Error>(())
    })?;
    let builder = builder.into_inner().expect("no thread panics");
    Ok((builder.end(&device), states))
}

fn crashes(seed: u64, options: &MkfsOptions, bytes: u64, steps: usize) -> Verdict {
    let base = fresh(bytes, options).expect("a fresh volume");
    let (story, states) = record(seed, base, steps).expect("a workload");
    judged(seed, &story, &states)
}

fn judged(seed: u64, story: &Story, states: &[Items]) -> Verdict {
    let crashes = CrashOptions { seed, seeded_per_gap: 6, pivotal: is_super_block };
    let options = JudgeOptions { crashes, threads: 2, one_in: 1 };
    judge(story, &options, &|crash, image, allowed| {
        let check = || -> Result<()> {
            let image: Arc<dyn Device> = Arc::new(image);
            check_crashed(&image)?;
            let forest = open(Arc::clone(&image))?;
            let have = items(&forest)?;
            let found = allowed.clone().rev().find(|state| states[*state] == have);
            ensure!(found.is_some(), "the items are those of no allowed state");
            if crash.number.is_multiple_of(8) {
                let (mut random, mut state) = (Random::new(crash.number), have);
                for _ in 0..3 {
                    step(&forest, &mut random, &mut state)?;
                    forest.commit()?;
                }
                ensure!(items(&forest)? == state, "going on");
                drop(forest);
                check(&image)?;
                ensure!(items(&open(image)?)? == state, "after more operations");
            }
            Ok(())
        };
        check().map_err(|error| format!("{error:#}"))
    })
}

#[test]
fn trees_are_whole_and_clean_after_every_crash() {
    let (seeds, steps) = if is_long() { (40, 120) } else { (3, 40) };
    let mut sum = Verdict::default();
    for seed in 0..seeds {
        sum.merge(crashes(seed, &MkfsOptions::default(), VOLUME_BYTES, steps));
    }
    assert_eq!(sum.failed, 0, "{sum}");
    assert!(sum.states > 100, "{sum}");
}

#[test]
fn small_nodes_make_deep_trees_and_are_whole_after_every_crash() {
    let options = MkfsOptions { node_bytes: Some(4096), ..MkfsOptions::default() };
    let verdict = crashes(77, &options, VOLUME_BYTES, 40);
    assert_eq!(verdict.failed, 0, "{verdict}");
}

#[test]
fn commits_beside_changes_are_whole_after_every_crash() {
    for seed in 0..if is_long() { 20 } else { 2 } {
        let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
        let (story, states) = record_with_committer(seed, base, 200).unwrap();
        let verdict = judged(seed, &story, &states);
        assert_eq!(verdict.failed, 0, "{verdict}");
        assert!(verdict.states > 40, "{verdict}");
    }
}
