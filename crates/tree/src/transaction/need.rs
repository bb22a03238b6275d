//! [`Need`]: what a handle is for, from which its reservation follows.

/// The changes that a handle is for: it reserves space for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The most items that may be inserted, changed or removed.
    pub items: u32,
    pub level: ReservationLevel,
    /// Whether the blocks that the changes may add are charged to the quota of a subvolume. Those
    /// of changes that remove items, or change them in place, are not.
    pub is_charged: bool,
    /// The most references to extents that the changes may add or drop, if they may be many. The
    /// commit may copy leaves for each of them, which the reservation for the items leaves out.
    pub references: u32,
}

/// How deep into the global reserve a handle's reservation may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationLevel {
    /// Leaves the global reserve alone.
    Normal,
    /// May use half of the global reserve: the changes free space in the end.
    Deletion,
    /// May use three quarters of the global reserve: other reservations already cover the changes.
    Prereserved,
}

impl Need {
    /// Returns the need of changes to up to `items` items, at the normal level.
    pub fn items(items: u32) -> Self {
        Self { items, level: ReservationLevel::Normal, is_charged: true, references: 0 }
    }

    /// Raises the level for changes that free space in the end.
    #[must_use]
    pub fn deleting(self) -> Self {
        Self { level: ReservationLevel::Deletion, ..self }.uncharged()
    }

    /// Adds references to extents.
    #[must_use]
    pub fn references(self, references: u32) -> Self {
        Self { references, ..self }
    }

    /// Leaves the changes out of quotas.
    #[must_use]
    pub fn uncharged(self) -> Self {
        Self { is_charged: false, ..self }
    }
}
