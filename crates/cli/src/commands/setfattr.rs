//! `setfattr`: sets and removes extended attributes.

use butternut::{Follow, SetXattr};

use super::transaction::{Transaction, failed};
use super::xattr_value;
use crate::args::{GlobalArgs, SetfattrArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, text};

/// Namespaces of the kernel, which does not list attributes in any other.
const NAMESPACES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];

pub(crate) fn run(global: &GlobalArgs, args: &SetfattrArgs, out: &mut Output) -> Outcome {
    let (name, value) = parse(args)?;
    let follow = if args.no_dereference { Follow::NotLast } else { Follow::Last };
    let mut transaction = Transaction::open(global, &args.volume)?;
    for path in &args.paths {
        let path = text::bytes(path);
        let id = transaction.find(&path, follow)?;
        let done = match &value {
            Some(value) => transaction.filesystem().set_xattr(id, &name, value, SetXattr::Either),
            None => transaction.filesystem().remove_xattr(id, &name),
        };
        done.map_err(|error| failed(&path, &error))?;
        transaction.record(if value.is_some() { "set" } else { "removed" }, &path);
    }
    transaction.finish(global, out, |object| object.name("name", &name))
}

/// Returns the name of the attribute, and its value or `None` to remove it.
fn parse(args: &SetfattrArgs) -> Result<(Vec<u8>, Option<Vec<u8>>), Failure> {
    let is_removed = args.remove.is_some();
    let Some(name) = args.remove.as_ref().or(args.name.as_ref()).map(text::bytes) else {
        return Err(Failure::new("--name", "no attribute is named").hint("add -n user.NAME"));
    };
    let is_known = |space: &&[u8]| name.len() > space.len() && name.starts_with(space);
    if !NAMESPACES.iter().any(is_known) {
        return Err(Failure::new(
            "--name",
            format!("{} is not in a known namespace", text::escaped(&name)),
        )
        .hint("use user.NAME, trusted.NAME, security.NAME, system.NAME or btrfs.NAME"));
    }
    if is_removed {
        return Ok((name, None));
    }
    let typed = args.value.as_ref().map(text::bytes).unwrap_or_default();
    let value = xattr_value::parse(&typed).ok_or_else(|| {
        Failure::new("--value", format!("{} is not a valid value", text::escaped(&typed)))
            .hint("use text, \"text\", 0x and hexadecimal digits, or 0s and base64")
    })?;
    Ok((name, Some(value)))
}
