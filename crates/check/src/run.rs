//! Runs of items that belong to one object, and what a cut through them leaves open.
//!
//! An object's items follow one another, over as many leaves as they need. A leaf, or any subtree,
//! knows all of an object only if it holds something before and behind it: its first and its last
//! object stay open until the neighbours are joined. Everything between was closed, once, where it
//! lay; so a subtree that many snapshots share is looked at once.

/// What is known of one object so far.
pub(crate) trait Part {
    fn object(&self) -> u64;

    /// Adds what the items behind these said of the same object.
    fn glue(&mut self, next: Self);

    /// Some items of the object could not be read.
    fn spoil(&mut self);
}

/// The open ends of a run of leaves. A run with one object has only a first.
#[derive(Clone, Debug)]
pub(crate) struct Run<P> {
    first: Option<P>,
    last: Option<P>,
    /// The run begins, or ends, beside something that could not be read.
    is_torn_before: bool,
    is_torn_behind: bool,
}

impl<P> Default for Run<P> {
    fn default() -> Self {
        Self { first: None, last: None, is_torn_before: false, is_torn_behind: false }
    }
}

impl<P: Part> Run<P> {
    /// In place of what could not be read.
    pub(crate) fn lost() -> Self {
        Self { is_torn_before: true, is_torn_behind: true, ..Self::default() }
    }

    /// The part that items of `object` behind all others belong to; made if it is not there.
    pub(crate) fn part_of(
        &mut self,
        object: u64,
        make: impl FnOnce(u64) -> P,
        close: &mut dyn FnMut(P),
    ) -> Option<&mut P> {
        if self.end().is_none_or(|part| part.object() != object) {
            let part = make(object);
            if self.first.is_none() {
                self.first = Some(part);
            } else if let Some(before) = self.last.replace(part) {
                close(before);
            }
        }
        self.end()
    }

    /// Adds the run behind this one.
    pub(crate) fn join(&mut self, mut right: Self, close: &mut dyn FnMut(P)) {
        if self.is_torn_behind
            && let Some(first) = &mut right.first
        {
            first.spoil();
        }
        if right.is_torn_before {
            match self.end() {
                Some(end) => end.spoil(),
                None => self.is_torn_before = true,
            }
        }
        let right_is_bare = right.first.is_none();
        self.is_torn_behind = right.is_torn_behind || (right_is_bare && self.is_torn_behind);
        let Some(first) = right.first else { return };
        match self.end() {
            Some(end) if end.object() == first.object() => end.glue(first),
            Some(_) => {
                if let Some(before) = self.last.replace(first) {
                    close(before);
                }
            }
            None => self.first = Some(first),
        }
        if let Some(last) = right.last {
            if self.first.is_none() {
                self.first = Some(last);
            } else if let Some(before) = self.last.replace(last) {
                close(before);
            }
        }
    }

    /// Closes both ends: nothing comes before or behind.
    pub(crate) fn finish(self, close: &mut dyn FnMut(P)) {
        self.first.into_iter().chain(self.last).for_each(close);
    }

    /// What a join with the run behind would glue or put side by side.
    pub(crate) fn seam<'r>(&'r self, right: &'r Self) -> Option<(&'r P, &'r P)> {
        self.last.as_ref().or(self.first.as_ref()).zip(right.first.as_ref())
    }

    fn end(&mut self) -> Option<&mut P> {
        self.last.as_mut().or(self.first.as_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Count(u64, u32, bool);

    impl Part for Count {
        fn object(&self) -> u64 {
            self.0
        }

        fn glue(&mut self, next: Self) {
            self.1 += next.1;
            self.2 |= next.2;
        }

        fn spoil(&mut self) {
            self.2 = true;
        }
    }

    fn run_of(objects: &[u64], closed: &mut Vec<Count>) -> Run<Count> {
        let mut run = Run::default();
        for object in objects {
            let part = run.part_of(*object, |o| Count(o, 0, false), &mut |p| closed.push(p));
            part.unwrap().1 += 1;
        }
        run
    }

    #[test]
    fn however_a_row_of_items_is_cut_each_object_is_closed_once_and_whole() {
        let row = [1, 1, 2, 3, 3, 3, 3, 4, 5, 5];
        for a in 0..=row.len() {
            for b in a..=row.len() {
                let mut closed = Vec::new();
                let mut left = run_of(&row[..a], &mut closed);
                let mut middle = run_of(&row[a..b], &mut closed);
                let right = run_of(&row[b..], &mut closed);
                middle.join(right, &mut |part| closed.push(part));
                left.join(middle, &mut |part| closed.push(part));
                left.finish(&mut |part| closed.push(part));
                closed.sort_by_key(|part| part.0);
                let counts: Vec<_> = closed.iter().map(|part| (part.0, part.1)).collect();
                assert_eq!(counts, [(1, 2), (2, 1), (3, 4), (4, 1), (5, 2)], "{a} {b}");
            }
        }
    }

    #[test]
    fn objects_beside_a_lost_run_are_spoiled_and_no_others() {
        let mut closed = Vec::new();
        let mut left = run_of(&[1, 2], &mut closed);
        let right = run_of(&[2, 3], &mut closed);
        left.join(Run::lost(), &mut |part| closed.push(part));
        left.join(right, &mut |part| closed.push(part));
        left.finish(&mut |part| closed.push(part));
        closed.sort_by_key(|part| part.0);
        assert_eq!(closed, [Count(1, 1, false), Count(2, 2, true), Count(3, 1, false)]);
    }
}
