//! Generates operations on attributes.

use super::{COLLIDING, Generator};
use crate::acl::Acl;
use crate::bytes::Bytes;
use crate::operation::{Moment, Operation, Setting, flags};
use crate::random::Random;

/// The name of xattrs whose values are near the size limit.
const LARGEST: &str = "user.largest";

const IDS: [u32; 5] = [0, 1, 1000, 65_534, 4_000_000_000];

impl Generator {
    pub(super) fn attribute_operation(&mut self) -> Operation {
        let at = if self.random.one_in(16) { self.directory() } else { self.place() };
        match self.random.below(23) {
            0..=2 => Operation::Chmod { at, mode: self.mode() },
            3..=5 => self.chown(at),
            6..=8 => self.times(at),
            9..=13 => self.set_xattr(at),
            14..=15 => Operation::RemoveXattr { at, name: self.xattr_name() },
            16..=19 => self.set_acl(),
            _ => self.set_flags(at),
        }
    }

    fn chown(&mut self, at: Bytes) -> Operation {
        let (uid, gid) = (*self.random.pick(&IDS), *self.random.pick(&IDS));
        // At least one id is set: a chown without ids checks nothing, but still strips privileges.
        let (uid, gid) = match self.random.below(3) {
            0 => (Some(uid), None),
            1 => (None, Some(gid)),
            _ => (Some(uid), Some(gid)),
        };
        Operation::Chown { at, uid, gid }
    }

    fn times(&mut self, at: Bytes) -> Operation {
        let (atime, mtime) = (moment(&mut self.random), moment(&mut self.random));
        let (atime, mtime) = match self.random.below(4) {
            0 => (Some(atime), None),
            1 => (None, Some(mtime)),
            _ => (Some(atime), Some(mtime)),
        };
        Operation::Times { at, atime, mtime }
    }

    fn xattr_name(&mut self) -> Bytes {
        let [one, other] = COLLIDING[0];
        match self.random.below(16) {
            0..=1 => Bytes(format!("user.{one}").into_bytes()),
            2..=3 => Bytes(format!("user.{other}").into_bytes()),
            4 => Bytes(format!("trusted.{one}").into_bytes()),
            5 => Bytes([&b"user."[..], &[0xff, 0x01, b'\n']].concat()),
            6 => Bytes([&b"user."[..], &[b'n'; 250]].concat()),
            7 if self.random.one_in(4) => Bytes([&b"user."[..], &[b'n'; 251]].concat()),
            8..=9 => "trusted.t".into(),
            10 => "security.judge".into(),
            11 => LARGEST.into(),
            _ => "user.a".into(),
        }
    }

    fn set_xattr(&mut self, at: Bytes) -> Operation {
        // Values near the limit are created and never grown: whether one can grow depends on how
        // full its leaf is. Xattrs with colliding names share an item, so their values stay small.
        let is_largest = self.random.one_in(8);
        let name = if is_largest { LARGEST.into() } else { self.xattr_name() };
        let is_largest = is_largest || name.0 == LARGEST.as_bytes();
        let limit = 16_228 - name.0.len() as u64;
        let bytes = match self.random.below(24) {
            _ if is_largest => limit + self.random.below(3) - 1,
            0 => 65_536,
            1 => 65_537,
            2..=4 => 0,
            5..=9 => self.random.below(2000),
            _ => self.random.below(40),
        };
        let how = match self.random.below(6) {
            _ if is_largest => Setting::Create,
            0 => Setting::Create,
            1 => Setting::Replace,
            _ => Setting::Any,
        };
        let seed = self.random.below(1 << 20);
        Operation::SetXattr { at, name, bytes, seed, how }
    }

    fn set_acl(&mut self) -> Operation {
        let is_default = self.random.one_in(2);
        let at = if is_default || self.random.one_in(2) { self.directory() } else { self.place() };
        let acl = (!self.random.one_in(4)).then(|| acl(&mut self.random));
        Operation::SetAcl { at, is_default, acl }
    }

    fn set_flags(&mut self, at: Bytes) -> Operation {
        let mut all = 0;
        // Guard flags are mostly cleared again, because they forbid most operations.
        if self.random.one_in(3) {
            let sets = [
                flags::NO_COW,
                flags::NO_COW,
                flags::IMMUTABLE,
                flags::APPEND,
                flags::NO_DUMP,
                flags::NO_ATIME,
                flags::SYNC,
                flags::DIR_SYNC,
                flags::COMPRESS,
                flags::NO_COMPRESS,
            ];
            let few = if self.without.compression { 8 } else { sets.len() };
            for _ in 0..=self.random.below(2) {
                all |= sets[self.random.index(few)];
            }
            if self.without.guard_flags {
                all &= !(flags::IMMUTABLE | flags::APPEND);
            }
        }
        Operation::SetFlags { at, flags: all }
    }
}

fn moment(random: &mut Random) -> Moment {
    let secs = *random.pick(&[0, 1, -1, 1_700_000_000, i64::from(i32::MAX) + 1, -2_208_988_800]);
    let nanos = *random.pick(&[0, 1, 999_999_999, 123_456_789]);
    Moment { secs, nanos }
}

fn acl(random: &mut Random) -> Acl {
    let mut perm = || u16::try_from(random.below(8)).expect("three bits");
    let (owner, group, mask, other) = (perm(), perm(), perm(), perm());
    let (user_perm, group_perm) = (perm(), perm());
    let mut users = Vec::new();
    let mut groups = Vec::new();
    for (at, id) in IDS.into_iter().enumerate() {
        if random.one_in(4) {
            users.push((id, user_perm));
        }
        if random.one_in(4 + at as u64) {
            groups.push((id, group_perm));
        }
    }
    let needs_mask = !users.is_empty() || !groups.is_empty();
    let mask = (needs_mask || random.one_in(2)).then_some(mask);
    Acl { owner, users, group, groups, mask, other }
}
