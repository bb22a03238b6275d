//! The enumeration of sequences, and the rules on states that break one of them.

use super::enumerate::{self, ALL, SAMPLED};
use super::library::expected;
use super::model::{Action, Kind, ROOT, World};
use super::rules::{History, Observed, Shown, Synced};
use super::step::{INITIALS, Sequence};
use std::collections::BTreeSet;
use std::sync::Arc;

const END: usize = 1000;

/// Returns the history of a sequence whose syncs all return.
fn history(text: &str) -> History {
    let sequence: Sequence = text.parse().unwrap();
    let mut worlds = vec![expected(sequence.initial).unwrap()];
    let (mut begun, mut syncs) = (vec![0], Vec::new());
    for (number, step) in sequence.steps.iter().enumerate() {
        let mut world = worlds.last().unwrap().clone();
        for action in world.plan(*step, number).unwrap() {
            if let Action::Sync { inode, verb } = action {
                syncs.push(Synced { inode, verb, world: worlds.len() - 1, position: number });
                continue;
            }
            world.apply(&action);
            worlds.push(world.clone());
            begun.push(number);
        }
    }
    let inos = (0..worlds.last().unwrap().inodes.len() as u64).map(|at| 256 + at).collect();
    History { worlds, begun, syncs, inos }
}

/// Returns what a volume in this world shows.
fn shown(world: &World) -> Observed {
    let mut observed = Observed::default();
    for ((dir, name), link) in &world.names {
        let (dir, target) = (256 + *dir as u64, 256 + link.inode as u64);
        observed.names.insert((dir, (*name).to_owned()), target);
    }
    for (number, inode) in world.inodes.iter().enumerate() {
        if !world.is_linked(number) {
            continue;
        }
        let own = world.names.keys().filter(|name| name.0 == number);
        let size = match inode.kind {
            Kind::Directory => own.map(|name| 2 * name.1.len() as u64).sum(),
            _ => inode.bytes.len() as u64,
        };
        let names = world.names_of(number).len() as u64;
        let nlink = if number == ROOT { 1 } else { names };
        let inode = inode.clone();
        observed.inodes.insert(256 + number as u64, Shown { inode, nlink, size });
    }
    observed
}

/// Returns which worlds of a sequence a crash after its end may show.
fn allowed(text: &str) -> Vec<bool> {
    let history = history(text);
    let verdicts = history.worlds.iter().map(|world| history.verify(END, &shown(world)).is_ok());
    verdicts.collect()
}

#[test]
fn a_crash_shows_no_world_before_the_sync() {
    assert_eq!(allowed("plain: chmod foo; append foo; fsync foo"), [false, false, true]);
    assert_eq!(allowed("plain: chmod foo; fsync foo; append foo"), [false, true, true]);
    assert_eq!(allowed("plain: chmod foo; fdatasync foo"), [true, true]);
    assert_eq!(allowed("plain: append foo; fdatasync foo"), [false, true]);
    assert_eq!(allowed("plain: rename foo A/bar; fsync A/bar"), [false, true]);
    assert_eq!(allowed("plain: rename foo A/bar; fsync-directory A"), [false, true]);
    assert_eq!(allowed("plain: rename foo A/bar; fsync-directory /"), [false, true]);
    assert_eq!(allowed("plain: rename foo A/bar; fsync A/foo"), [true, true]);
    assert_eq!(allowed("linked: unlink A/foo; fsync A/bar"), [false, true]);
    assert_eq!(allowed("linked: symlink foo; fsync-directory /"), [false, true]);
    assert_eq!(allowed("empty: create foo; fsync-directory /; create bar"), [false, true, true]);
}

#[test]
fn a_lost_or_doubled_name_is_found() {
    let history = history("plain: rename foo A/foo; fsync-directory B");
    let [before, after] = [0, 1].map(|world| shown(&history.worlds[world]));
    let foo = history.worlds[0].find("foo").unwrap() as u64 + 256;
    let dir = history.worlds[0].find("A").unwrap() as u64 + 256;
    history.verify(END, &before).unwrap();
    history.verify(END, &after).unwrap();
    let mut lost = before.clone();
    lost.names.remove(&(256, "foo".to_owned()));
    lost.inodes.remove(&foo);
    lost.inodes.get_mut(&256).unwrap().size -= 6;
    assert!(history.verify(END, &lost).is_err());
    let mut doubled = after.clone();
    doubled.names.insert((256, "foo".to_owned()), foo);
    doubled.inodes.get_mut(&foo).unwrap().nlink = 2;
    doubled.inodes.get_mut(&256).unwrap().size += 6;
    assert!(history.verify(END, &doubled).is_err());
    let mut absent = before.clone();
    let replaced = absent.names.remove(&(dir, "foo".to_owned())).unwrap();
    absent.inodes.remove(&replaced);
    absent.inodes.get_mut(&dir).unwrap().size -= 6;
    assert!(history.verify(END, &absent).is_err());
}

#[test]
fn wrong_content_counts_and_sizes_are_found() {
    let history = history("plain: shrink foo; chmod A/foo; fsync foo");
    let good = shown(history.worlds.last().unwrap());
    let foo = history.worlds[0].find("foo").unwrap() as u64 + 256;
    history.verify(END, &good).unwrap();
    let changes: [fn(&mut Shown); 5] = [
        |shown| Arc::make_mut(&mut shown.inode.bytes)[77] ^= 1,
        |shown| shown.nlink = 2,
        |shown| shown.inode.mode = 0o600,
        |shown| shown.inode.xattrs.clear(),
        |shown| {
            shown.size += 1;
            Arc::make_mut(&mut shown.inode.bytes).push(0);
        },
    ];
    for change in changes {
        let mut bad = good.clone();
        change(bad.inodes.get_mut(&foo).unwrap());
        assert!(history.verify(END, &bad).is_err(), "{bad:?}");
    }
    let mut bad = good.clone();
    bad.inodes.get_mut(&256).unwrap().size += 2;
    assert!(history.verify(END, &bad).is_err());
    let mut strange = good;
    strange.names.insert((256, "bar".to_owned()), foo);
    assert!(history.verify(END, &strange).is_err());
}

#[test]
fn every_sequence_is_parsed_as_it_is_printed() {
    let mut sequences = Vec::new();
    for initial in INITIALS {
        enumerate::each(initial, ALL[0], &mut |sequence| sequences.push(sequence)).unwrap();
        for seed in 0..40 {
            sequences.extend(enumerate::sample(initial, SAMPLED[4], seed).unwrap());
        }
    }
    for sequence in &sequences {
        assert_eq!(sequence.to_string().parse::<Sequence>().unwrap(), *sequence);
    }
    let texts: BTreeSet<String> = sequences.iter().map(ToString::to_string).collect();
    assert!(texts.len() > 300, "{}", texts.len());
}
