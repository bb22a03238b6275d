//! `setfattr`: sets and removes extended attributes.

use butternut::{Follow, SetXattr};

use super::change::{Change, failed};
use super::xattr_value;
use crate::failure::{Failure, Outcome};
use crate::flags::{GlobalArgs, SetfattrArgs};
use crate::output::{Output, text};

/// Namespaces that the kernel knows; it shows nothing else, whatever a volume holds.
const NAMESPACES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];

pub(crate) fn run(global: &GlobalArgs, args: &SetfattrArgs, out: &mut Output) -> Outcome {
    let (name, value) = meant(args)?;
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::Last };
    let mut change = Change::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let id = change.find(&path, follow)?;
        let done = match &value {
            Some(value) => change.filesystem().set_xattr(id, &name, value, SetXattr::Either),
            None => change.filesystem().remove_xattr(id, &name),
        };
        done.map_err(|error| failed(&path, &error))?;
        change.did(if value.is_some() { "set" } else { "removed" }, &path);
    }
    change.finish(global, out, |object| object.name("name", &name))
}

/// The attribute, and what it is to be; nothing: gone.
fn meant(args: &SetfattrArgs) -> Result<(Vec<u8>, Option<Vec<u8>>), Failure> {
    let is_removed = args.remove.is_some();
    let Some(name) = args.remove.as_ref().or(args.name.as_ref()).map(text::bytes) else {
        return Err(Failure::new("--name", "no attribute is named").cure("say -n user.NAME"));
    };
    let is_known = |space: &&[u8]| name.len() > space.len() && name.starts_with(space);
    if !NAMESPACES.iter().any(is_known) {
        return Err(Failure::new("--name", format!("{} is in no namespace", text::escaped(&name)))
            .cure("write user.NAME, trusted.NAME, security.NAME, system.NAME or btrfs.NAME"));
    }
    if is_removed {
        return Ok((name, None));
    }
    let typed = args.value.as_ref().map(text::bytes).unwrap_or_default();
    let value = xattr_value::parse(&typed).ok_or_else(|| {
        Failure::new("--value", format!("{} is broken", text::escaped(&typed)))
            .cure("write text, \"text\", 0x and hex digits, or 0s and base64")
    })?;
    Ok((name, Some(value)))
}
