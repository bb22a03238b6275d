//! Arguments of the commands that change files, directories and their attributes.

use std::ffi::OsString;

use clap::Args;

use super::VolumeArgs;

#[derive(Debug, Args)]
pub(crate) struct MkdirArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Directories to create
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Create missing parent directories; an existing directory is no error
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// File mode, as in chmod(1) [default: 755]
    #[arg(short, long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files or directories to remove
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Remove directories and their contents
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Remove empty directories
    #[arg(short, long)]
    pub(crate) dir: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MvArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files to move, then the destination: a new name or an existing directory
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "DEST"])]
    pub(crate) paths: Vec<OsString>,
    /// Fail if the destination exists
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    /// Exchange two files
    #[arg(long, conflicts_with = "no_clobber")]
    pub(crate) exchange: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files to copy, then the destination: a file name or an existing directory
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "DEST"])]
    pub(crate) paths: Vec<OsString>,
    /// Whether the copy shares the data of the original, and takes no space until one of them
    /// changes: always (fail where it cannot), auto (copy what cannot be shared) or never
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        default_missing_value = "always",
        num_args = 0..=1,
        require_equals = true
    )]
    pub(crate) reflink: Reflink,
    /// Fail if the destination exists
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    /// Keep mode, owner and times
    #[arg(short, long)]
    pub(crate) preserve: bool,
}

/// Whether copies share their data.
#[derive(Debug, Clone, Copy, clap::ValueEnum, PartialEq, Eq)]
pub(crate) enum Reflink {
    Always,
    Auto,
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct LnArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The existing file; with --symbolic, the target text of the link
    pub(crate) target: OsString,
    /// The new name, or an existing directory
    pub(crate) name: OsString,
    /// Create a symbolic link
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChmodArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// File mode: octal (4755) or symbolic (u=rwX,go-w)
    #[arg(allow_hyphen_values = true)]
    pub(crate) mode: String,
    /// Files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Change directories and their contents; symlinks are not changed
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ChownArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// OWNER, OWNER:GROUP or :GROUP, as numeric ids or as names from /etc/passwd and /etc/group of
    /// this machine; OWNER: also sets the login group of OWNER
    #[arg(value_name = "OWNER[:GROUP]")]
    pub(crate) owner: String,
    /// Files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Change directories and their contents; a symlink itself is changed, not its target
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Operate on a symlink itself, not on its target
    #[arg(long)]
    pub(crate) no_dereference: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TouchArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files; missing ones are created empty
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Access and modification time: 2024-05-01T12:00:00Z, 2024-05-01 12:00:00 (local time), or
    /// @SECONDS since 1970 [default: now]
    #[arg(short, long, value_name = "TIME")]
    pub(crate) date: Option<String>,
    /// Do not create files
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SetfattrArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Name of the attribute, with its namespace (user.name)
    #[arg(short, long, value_name = "NAME", required_unless_present = "remove")]
    pub(crate) name: Option<OsString>,
    /// Value, also -v (here not --verbose): text, optionally in quotes; 0x and hexadecimal digits;
    /// 0s and base64
    #[arg(long, value_name = "VALUE", requires = "name", allow_hyphen_values = true)]
    pub(crate) value: Option<OsString>,
    /// Remove this attribute
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with = "name")]
    pub(crate) remove: Option<OsString>,
    /// Operate on a symlink itself, not on its target
    #[arg(long)]
    pub(crate) no_dereference: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GetfattrArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// Files
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Print only this attribute
    #[arg(short, long, value_name = "NAME")]
    pub(crate) name: Option<OsString>,
    /// Encoding of printed values [default: text if the value is text, else hex]
    #[arg(short, long, value_enum)]
    pub(crate) encoding: Option<Encoding>,
    /// Print only the raw value of the attribute
    #[arg(long, requires = "name")]
    pub(crate) only_values: bool,
    /// Operate on a symlink itself, not on its target
    #[arg(long)]
    pub(crate) no_dereference: bool,
}

/// The encoding in which the value of an attribute is printed.
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
    /// Files; missing ones are created
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<OsString>,
    /// Size in bytes, with suffix K, M, G or T; +N extends and -N shrinks the file by N
    #[arg(short, long, value_name = "[+-]N", allow_hyphen_values = true)]
    pub(crate) size: String,
    /// Do not create files
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    /// The file, whose contents are replaced; it is created if it does not exist
    pub(crate) path: OsString,
    /// Write at this offset, with suffix K, M, G or T, and keep what is before and behind it
    #[arg(long, value_name = "N", conflicts_with = "append")]
    pub(crate) offset: Option<String>,
    /// Append to the file
    #[arg(short, long)]
    pub(crate) append: bool,
    /// With --offset, truncate the file after the last byte written; without, empty it if stdin is
    /// empty
    #[arg(short, long)]
    pub(crate) truncate: bool,
}
