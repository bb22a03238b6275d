//! Floor 7: Butternut's fio engine, all of it that knows no header of fio's.
//!
//! `shim/engine.c` is the other half. fio keeps the layout of its structures private to each
//! version, so the shim is compiled against the source of the fio that is to load it; `scripts/fio`
//! does that, and links the two into `libbutternut_fio.so`. What they say to each other is in
//! `shim/butternut_fio.h`, in plain types, and [`abi`] is its only implementation: the one place
//! beside `butternut-sys` where `unsafe` is.
//!
//! This crate is GPL-2.0-only, as the shim includes fio's headers. Nothing else imports it.

pub mod abi;

mod files;
mod requests;
mod switches;
mod volumes;

/// Why a call of the shim's failed.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    #[error("{what}")]
    Library {
        what: String,
        #[source]
        source: Box<butternut::Error>,
    },
    #[error("no device is named (volume=DEV[,DEV...])")]
    NoDevice,
    #[error("no path of a file")]
    NoPath,
    #[error("switches: {word:?}: want KEY=VALUE with KEY one of {known}")]
    UnknownSwitch { word: String, known: String },
    #[error("switches: {word:?}: want {want}")]
    SwitchValue { word: String, want: String },
    #[error("another job has the volume open with switches={have:?}, this one wants {want:?}")]
    OtherSwitches { have: String, want: String },
    #[error("the volume is open for reading only")]
    ReadOnly,
    #[error("no memory for buffers of {bytes} bytes")]
    NoMemory { bytes: u64 },
    #[error("stats={path}")]
    Stats {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the queue is full")]
    Full,
    #[error("the shim passed {what}")]
    Shim { what: &'static str },
    #[error("panicked: {text}")]
    Panic { text: String },
}

/// What every call inside this crate returns.
pub(crate) type Result<T, E = FioError> = std::result::Result<T, E>;

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;

impl FioError {
    pub(crate) fn library(what: impl Into<String>) -> impl FnOnce(butternut::Error) -> Self {
        move |source| Self::Library { what: what.into(), source: Box::new(source) }
    }

    /// Positive, as Linux has them.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Library { source, .. } => source.errno(),
            Self::NoDevice
            | Self::NoPath
            | Self::UnknownSwitch { .. }
            | Self::SwitchValue { .. }
            | Self::Shim { .. } => EINVAL,
            Self::OtherSwitches { .. } => EBUSY,
            Self::ReadOnly => EROFS,
            Self::NoMemory { .. } => ENOMEM,
            Self::Full => EAGAIN,
            Self::Stats { source, .. } => source.raw_os_error().unwrap_or(EIO),
            Self::Panic { .. } => EIO,
        }
    }

    /// The error and its causes, on one line.
    pub fn line(&self) -> String {
        line(self)
    }
}

/// An error and its causes, on one line.
pub(crate) fn line(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line.push_str(": ");
        line.push_str(&error.to_string());
        cause = error.source();
    }
    line
}
