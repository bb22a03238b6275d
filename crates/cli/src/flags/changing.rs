//! As typed: the commands that change names and what is known of files.

use std::ffi::OsString;

use clap::Args;

use super::VolumeArgs;

#[derive(Debug, Args)]
pub(crate) struct MkdirArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The directories to make
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Make directories above that are missing, and do not mind what is there already
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Permissions, as of chmod [default: 755]
    #[arg(short, long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// What to remove
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Directories too, with everything in them
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Do not mind what is not there
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Empty directories too
    #[arg(short, long)]
    pub(crate) dir: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MvArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// What to move, and last where to: a new name, or a directory that is there
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "DEST"])]
    pub(crate) paths: Vec<OsString>,
    /// Fail where the new name is there
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    /// Let two names change places
    #[arg(long, conflicts_with = "no_clobber")]
    pub(crate) exchange: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LnArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The file that gets another name; with --symbolic, the text of the link
    pub(crate) target: OsString,
    /// The new name, or a directory that is there
    pub(crate) name: OsString,
    /// A symbolic link
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Take away what has the name now
    #[arg(short, long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChmodArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Permissions: octal (4755), or as in u=rwX,go-w
    #[arg(allow_hyphen_values = true)]
    pub(crate) mode: String,
    /// The files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Directories and everything in them; symlinks are left alone
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChownArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// OWNER, OWNER:GROUP or :GROUP, by number, or by a name in this machine's /etc/passwd and
    /// /etc/group; OWNER: is the owner with the group that it has there
    #[arg(value_name = "OWNER[:GROUP]")]
    pub(crate) owner: String,
    /// The files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Directories and everything in them; of symlinks, the link
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// A symlink, not what it points at
    #[arg(long)]
    pub(crate) no_dereference: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TouchArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The files; empty ones are made where missing
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Access and modification time: 2024-05-01T12:00:00Z, 2024-05-01 12:00:00 (here), or @SECONDS
    /// since 1970 [default: now]
    #[arg(short, long, value_name = "TIME")]
    pub(crate) date: Option<String>,
    /// Make no files
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetfattrArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// The attribute, by its full name (user.name)
    #[arg(short, long, value_name = "NAME", required_unless_present = "remove")]
    pub(crate) name: Option<OsString>,
    /// Its value (or -v, which is not --verbose here): text, in quotes or not; 0x and hex digits;
    /// 0s and base64
    #[arg(long, value_name = "VALUE", requires = "name", allow_hyphen_values = true)]
    pub(crate) value: Option<OsString>,
    /// Remove an attribute
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with = "name")]
    pub(crate) remove: Option<OsString>,
    /// A symlink, not what it points at
    #[arg(long)]
    pub(crate) no_dereference: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetfattrArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Only this attribute
    #[arg(short, long, value_name = "NAME")]
    pub(crate) name: Option<OsString>,
    /// How values are printed [default: text where it is text, else hex]
    #[arg(short, long, value_enum)]
    pub(crate) encoding: Option<Encoding>,
    /// Nothing but the value of the one attribute, as it is
    #[arg(long, requires = "name")]
    pub(crate) only_values: bool,
    /// A symlink, not what it points at
    #[arg(long)]
    pub(crate) no_dereference: bool,
}

/// How the value of an attribute is printed.
#[derive(Debug, Clone, Copy, clap::ValueEnum, PartialEq, Eq)]
pub(crate) enum Encoding {
    Text,
    Hex,
    Base64,
}

#[derive(Debug, Args)]
pub(crate) struct TruncateArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The files; they are made where missing
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Bytes, with K, M, G, T; +N and -N are more and fewer than there are
    #[arg(short, long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub(crate) size: String,
    /// Make no files
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The file; it is made where missing
    pub(crate) path: OsString,
    /// Where to start: bytes, or with K, M, G, T
    #[arg(long, default_value = "0", value_name = "N", conflicts_with = "append")]
    pub(crate) offset: String,
    /// Start at the end of the file
    #[arg(short, long)]
    pub(crate) append: bool,
    /// End the file where the writing ends
    #[arg(short, long)]
    pub(crate) truncate: bool,
}
