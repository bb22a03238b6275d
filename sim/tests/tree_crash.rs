//! Transactions of trees, and every crash of them: what is on the medium is clean, and holds the
//! items of one commit, none older than the last that returned.

use anyhow::{Result, ensure};
use butternut_device::{CrashOptions, Device, RecordingDevice};
use butternut_format::checksum::name_hash;
use butternut_format::key::{ItemType, Key};
use butternut_format::units::TreeId;
use butternut_mkfs::MkfsOptions;
use butternut_sim::crash::{JudgeOptions, Story, Telling, Verdict, judge};
use butternut_sim::random::Random;
use butternut_sim::volume::{check, check_crashed, fresh, is_super_block};
use butternut_tree::{Change, Forest, ForestOptions, Need};
use butternut_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// More than 64 MiB, so that the superblock has a second copy.
const VOLUME_BYTES: u64 = 160 << 20;

type Items = BTreeMap<Key, Vec<u8>>;

fn open(device: Arc<dyn Device>) -> Result<Arc<Forest>> {
    let volume = Volume::open(vec![device], OpenOptions::default())?;
    Ok(Forest::open_writable(Arc::new(volume), ForestOptions::default())?)
}

/// An extended attribute of the top directory: the simplest item of any size there is.
fn xattr(number: u64, bytes: usize, fill: u8) -> (Key, Vec<u8>) {
    let name = format!("user.{number}");
    let mut item = vec![0; 17];
    item.extend_from_slice(&7_u64.to_le_bytes());
    item.extend_from_slice(&u16::try_from(bytes).expect("small").to_le_bytes());
    item.extend_from_slice(&u16::try_from(name.len()).expect("short").to_le_bytes());
    item.push(8);
    item.extend_from_slice(name.as_bytes());
    item.resize(item.len() + bytes, fill);
    (Key::new(256, ItemType::XATTR_ITEM, name_hash(name.as_bytes())), item)
}

fn items(forest: &Arc<Forest>) -> Result<Items> {
    let tree = forest.tree(TreeId::FS)?.expect("the top subvolume");
    let mut cursor = tree.scan();
    cursor.seek(&Key::MIN)?;
    let mut found = BTreeMap::new();
    while let Some((key, data)) = cursor.item_parts() {
        if key.item_type == ItemType::XATTR_ITEM {
            ensure!(found.insert(key, data.to_vec()).is_none(), "{key} is there twice");
        }
        cursor.advance()?;
    }
    Ok(found)
}

/// One change of one to a few hundred items.
fn step(forest: &Arc<Forest>, random: &mut Random, state: &mut Items) -> Result<()> {
    let many = if random.one_in(4) { 400 } else { 6 };
    let mut changes: BTreeMap<Key, Option<Vec<u8>>> = BTreeMap::new();
    for _ in 0..=random.below(many) {
        let bytes = if random.one_in(10) { 3900 } else { random.index(200) };
        let fill = u8::try_from(random.below(256))?;
        let (key, item) = xattr(random.below(1500), bytes, fill);
        changes.insert(key, (!random.one_in(3)).then_some(item));
    }
    let handle = forest.join(Need::items(u32::try_from(changes.len())?))?;
    let edit = handle.tree(TreeId::FS)?;
    match random.below(5) {
        0 => {
            let from = random.number() << 32 >> 32;
            let to = from.saturating_add(random.below(1 << 31));
            let key = |at| Key::new(256, ItemType::XATTR_ITEM, at);
            let range: Range<Key> = key(from)..key(to);
            edit.remove_range(range.clone(), &mut |_, _| {})?;
            state.retain(|key, _| !range.contains(key));
        }
        1..=2 => {
            let sorted = changes.iter().map(|(key, to)| Change { key: *key, to: to.clone() });
            edit.merge(&sorted.collect::<Vec<_>>())?;
            apply(state, changes);
        }
        _ => {
            for (key, to) in &changes {
                match to {
                    Some(item) => edit.put(key, item)?,
                    None => drop(edit.remove(key)?),
                }
            }
            apply(state, changes);
        }
    }
    Ok(())
}

fn apply(state: &mut Items, changes: BTreeMap<Key, Option<Vec<u8>>>) {
    for (key, to) in changes {
        match to {
            Some(item) => drop(state.insert(key, item)),
            None => drop(state.remove(&key)),
        }
    }
}

fn tell(seed: u64, base: Arc<dyn Device>, steps: usize) -> Result<(Story, Vec<Items>)> {
    let device = Arc::new(RecordingDevice::new(base));
    let forest = open(Arc::<RecordingDevice>::clone(&device))?;
    let (mut random, mut telling) = (Random::new(seed), Telling::default());
    let mut states = vec![Items::new()];
    for _ in 0..steps {
        let mut state = states.last().expect("the first one").clone();
        telling.begin_step(&device);
        if random.one_in(5) {
            forest.commit()?;
            telling.promise(&device);
        } else {
            step(&forest, &mut random, &mut state)?;
        }
        ensure!(items(&forest)? == state, "seed {seed}, before a crash");
        states.push(state);
    }
    Ok((telling.end(&device), states))
}

/// The same with one thread that changes and one that commits all the time.
fn tell_beside(seed: u64, base: Arc<dyn Device>, steps: usize) -> Result<(Story, Vec<Items>)> {
    let device = Arc::new(RecordingDevice::new(base));
    let forest = open(Arc::<RecordingDevice>::clone(&device))?;
    let telling = Mutex::new(Telling::default());
    let ended = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let mut states = vec![Items::new()];
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let steps = ended.load(Ordering::SeqCst);
                forest.commit()?;
                telling.lock().expect("nobody panics").promise_steps(&device, steps);
            }
            Ok::<(), butternut_tree::TreeError>(())
        });
        let mut random = Random::new(seed);
        for _ in 0..steps {
            let mut state = states.last().expect("the first one").clone();
            telling.lock().expect("nobody panics").begin_step(&device);
            step(&forest, &mut random, &mut state)?;
            ended.fetch_add(1, Ordering::SeqCst);
            states.push(state);
        }
        is_over.store(true, Ordering::SeqCst);
        committer.join().expect("the committer does not panic")?;
        Ok::<(), anyhow::Error>(())
    })?;
    let telling = telling.into_inner().expect("nobody panics");
    Ok((telling.end(&device), states))
}

fn crashes(seed: u64, options: &MkfsOptions, bytes: u64, steps: usize) -> Verdict {
    let base = fresh(bytes, options).expect("a fresh volume");
    let (story, states) = tell(seed, base, steps).expect("a workload");
    judged(seed, &story, &states)
}

fn judged(seed: u64, story: &Story, states: &[Items]) -> Verdict {
    let crashes = CrashOptions { seed, seeded_per_gap: 6, pivotal: is_super_block };
    let options = JudgeOptions { crashes, threads: 2, one_in: 1 };
    judge(story, &options, &|crash, image, allowed| {
        let look = || -> Result<()> {
            let image: Arc<dyn Device> = Arc::new(image);
            check_crashed(&image)?;
            let forest = open(Arc::clone(&image))?;
            let have = items(&forest)?;
            let found = allowed.clone().rev().find(|state| states[*state] == have);
            ensure!(found.is_some(), "the items are those of no state that is allowed");
            if crash.number.is_multiple_of(8) {
                let (mut random, mut state) = (Random::new(crash.number), have);
                for _ in 0..3 {
                    step(&forest, &mut random, &mut state)?;
                    forest.commit()?;
                }
                ensure!(items(&forest)? == state, "going on");
                drop(forest);
                check(&image)?;
                ensure!(items(&open(image)?)? == state, "after going on");
            }
            Ok(())
        };
        look().map_err(|error| format!("{error:#}"))
    })
}

#[test]
fn trees_are_whole_and_clean_after_every_crash() {
    let is_long = std::env::var_os("BUTTERNUT_LONG").is_some_and(|value| !value.is_empty());
    let (seeds, steps) = if is_long { (40, 120) } else { (3, 40) };
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
    let base = fresh(VOLUME_BYTES, &MkfsOptions::default()).unwrap();
    let (story, states) = tell_beside(5, base, 300).unwrap();
    let verdict = judged(5, &story, &states);
    assert_eq!(verdict.failed, 0, "{verdict}");
    assert!(verdict.states > 40, "{verdict}");
}
