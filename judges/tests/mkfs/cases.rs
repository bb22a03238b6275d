//! The volumes that are made: a sample that covers every pair of options.

use butternut_judges::populate::seeded::Seeded;
use std::collections::BTreeSet;

/// Candidates of which the one with the most new pairs becomes a case.
const CANDIDATES: usize = 60;
/// Rounds without a new pair after which the remaining pairs are considered impossible.
const BARREN_ROUNDS_MAX: usize = 40;

const MIB: u64 = 1 << 20;

/// The number of values of each option, in the order of [`Case::of`].
const VALUES: [usize; 10] = [4, 5, 2, 2, 2, 2, 2, 2, 4, 3];

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) csum: &'static str,
    pub(crate) node_kib: u64,
    pub(crate) data: &'static str,
    pub(crate) metadata: &'static str,
    pub(crate) features: Vec<&'static str>,
    pub(crate) is_mixed: bool,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
}

impl Case {
    /// Returns the arguments for both tools.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![
            "--csum".to_owned(),
            self.csum.to_owned(),
            "-n".to_owned(),
            format!("{}k", self.node_kib),
            "-d".to_owned(),
            self.data.to_owned(),
            "-m".to_owned(),
            self.metadata.to_owned(),
        ];
        if !self.features.is_empty() {
            words.extend(["-O".to_owned(), self.features.join(",")]);
        }
        words.extend(self.is_mixed.then(|| "-M".to_owned()));
        words
    }

    pub(crate) fn name(&self) -> String {
        let mixed = if self.is_mixed { "mixed" } else { "split" };
        let features =
            if self.features.is_empty() { "default".to_owned() } else { self.features.join(",") };
        format!(
            "{}-{}k-{}-{}-{mixed}-{features}-{}M-at-{}K",
            self.csum,
            self.node_kib,
            self.data,
            self.metadata,
            self.bytes / MIB,
            self.offset >> 10
        )
    }

    /// Returns a case from a value for each option; contradictions are resolved.
    fn of(choice: [usize; 10]) -> Self {
        let [csum, node, data, metadata, skinny, holes, groups, mixed, size, offset] = choice;
        let is_mixed = mixed == 1;
        let data = ["single", "dup"][data];
        let metadata = if is_mixed { data } else { ["single", "dup"][metadata] };
        let mut features = Vec::new();
        features.extend((skinny == 1).then_some("^skinny-metadata"));
        // The block group tree needs no-holes and the free space tree.
        match (groups, holes) {
            (1, _) => features.push("block-group-tree"),
            (_, 1) => features.extend(["^no-holes", "^free-space-tree", "^extref"]),
            _ => {}
        }
        let least = match (is_mixed, data, metadata) {
            (true, "single", _) => 16,
            (true, ..) => 157,
            (_, "single", "single") => 45,
            (_, "single", _) => 109,
            (_, _, "single") => 165,
            _ => 229,
        };
        Self {
            csum: ["crc32c", "xxhash", "sha256", "blake2"][csum],
            node_kib: if is_mixed { 4 } else { [4, 8, 16, 32, 64][node] },
            data,
            metadata,
            features,
            is_mixed,
            bytes: [least * MIB, 300 * MIB + 4096, 3 << 30, 70 << 30][size],
            offset: [0, MIB, 68 << 10][offset],
        }
    }

    /// Returns the values of the case, each with its option.
    fn values(&self) -> Vec<String> {
        let mut values = vec![
            self.csum.to_owned(),
            format!("{}k", self.node_kib),
            format!("data {}", self.data),
            format!("metadata {}", self.metadata),
            format!("mixed {}", self.is_mixed),
            format!("bytes {}", self.bytes),
            format!("offset {}", self.offset),
        ];
        for name in ["^skinny-metadata", "^free-space-tree", "block-group-tree"] {
            values.push(format!("{name} {}", self.features.contains(&name)));
        }
        values
    }

    fn pairs(&self) -> BTreeSet<(String, String)> {
        let values = self.values();
        let mut pairs = BTreeSet::new();
        for (at, first) in values.iter().enumerate() {
            pairs.extend(values[at + 1..].iter().map(|other| (first.clone(), other.clone())));
        }
        pairs
    }
}

/// Returns cases that cover every possible pair of options.
pub(crate) fn pairwise() -> Vec<Case> {
    let mut random = Seeded::new(0x006d_6b66);
    let mut cases = Vec::new();
    let mut met = BTreeSet::new();
    let mut barren = 0;
    while barren < BARREN_ROUNDS_MAX {
        let candidates = (0..CANDIDATES).map(|_| Case::of(VALUES.map(|count| random.below(count))));
        let new = |case: &Case| case.pairs().difference(&met).count();
        let best = candidates.max_by_key(new).filter(|best| new(best) > 0);
        if let Some(best) = best {
            met.extend(best.pairs());
            cases.push(best);
        } else {
            barren += 1;
        }
    }
    cases
}

/// Returns the cases that `mkfs.btrfs` supports: it has no offset, and fails for small mixed dup
/// volumes.
pub(crate) fn of_mkfs_btrfs() -> Vec<Case> {
    let mut cases: Vec<Case> =
        pairwise().into_iter().map(|case| Case { offset: 0, ..case }).collect();
    cases.retain(|case| !(case.is_mixed && case.data == "dup" && case.bytes < 160 * MIB));
    let of = |size: u64, mixed| {
        let mut case = Case::of([0, 2, 0, 1, 0, 0, 0, mixed, 1, 0]);
        case.bytes = size;
        case
    };
    cases.extend(
        [110 * MIB, 321 * MIB + 4096, 700 * MIB, 2 << 30, 51 << 30].map(|size| of(size, 0)),
    );
    cases.extend([29 * MIB, 30 * MIB, 79 * MIB, 81 * MIB].map(|size| of(size, 1)));
    cases
}
