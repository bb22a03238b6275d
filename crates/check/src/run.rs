//! [`Run`]: combines the items of one object that are spread over several leaves.
//!
//! The items of an object are adjacent, but may span many leaves. A leaf, or a subtree, has all
//! items of an object only if there are items of other objects on both sides. So the first and the
//! last object of a subtree stay open until the subtree is joined with its neighbours; the objects
//! in between are closed immediately, and once. A subtree that snapshots share is therefore
//! processed once.

/// The items of one object that were seen so far.
pub(crate) trait Part {
    fn object(&self) -> u64;

    /// Adds the items of the same object that follow these.
    fn merge(&mut self, next: Self);

    /// Records that some items of the object could not be read.
    fn mark_incomplete(&mut self);
}

/// The open objects at both ends of a run of leaves. A run with one object has only `first`.
#[derive(Clone, Debug)]
pub(crate) struct Run<P> {
    first: Option<P>,
    last: Option<P>,
    /// The block before, or behind, the run could not be read.
    is_lost_before: bool,
    is_lost_behind: bool,
}

impl<P> Default for Run<P> {
    fn default() -> Self {
        Self { first: None, last: None, is_lost_before: false, is_lost_behind: false }
    }
}

impl<P: Part> Run<P> {
    /// Returns the run of a subtree that could not be read.
    pub(crate) fn lost() -> Self {
        Self { is_lost_before: true, is_lost_behind: true, ..Self::default() }
    }

    /// Returns the part of `object`, whose items follow all items so far. Makes it if it is new,
    /// and then passes the object before it to `close`.
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

    /// Appends the run that follows this one.
    pub(crate) fn join(&mut self, mut right: Self, close: &mut dyn FnMut(P)) {
        if self.is_lost_behind
            && let Some(first) = &mut right.first
        {
            first.mark_incomplete();
        }
        if right.is_lost_before {
            match self.end() {
                Some(end) => end.mark_incomplete(),
                None => self.is_lost_before = true,
            }
        }
        let right_is_bare = right.first.is_none();
        self.is_lost_behind = right.is_lost_behind || (right_is_bare && self.is_lost_behind);
        let Some(first) = right.first else { return };
        match self.end() {
            Some(end) if end.object() == first.object() => end.merge(first),
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

    /// Closes both ends. Call it on the run of the whole tree.
    pub(crate) fn finish(self, close: &mut dyn FnMut(P)) {
        self.first.into_iter().chain(self.last).for_each(close);
    }

    /// Returns the two parts that [`Run::join`] would merge or make adjacent.
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

        fn merge(&mut self, next: Self) {
            self.1 += next.1;
            self.2 |= next.2;
        }

        fn mark_incomplete(&mut self) {
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
    fn each_object_is_closed_once_and_whole_wherever_the_items_are_split() {
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
    fn only_objects_next_to_a_lost_run_are_incomplete() {
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
