//! Floor 7: Butternut's fio engine, without the part that includes fio's headers.
//!
//! `shim/engine.c` is that part. The layout of fio's structures differs between versions, so
//! `scripts/fio` compiles the shim against the source of the fio that will load it, and links it
//! with this crate into `libbutternut_fio.so`. The interface between the two is
//! `shim/butternut_fio.h`, which has plain types only. [`abi`] implements it; it is the only file
//! outside `butternut-sys` with `unsafe` code.
//!
//! This crate is GPL-2.0-only, as the shim includes fio's headers. Nothing else imports it.

pub mod abi;

mod files;
mod requests;
mod settings;
mod volumes;

/// Error of a call from the shim.
#[derive(Debug, thiserror::Error)]
pub enum FioError {
    #[error("{what}")]
    Library {
        what: String,
        #[source]
        source: Box<butternut::Error>,
    },
    #[error("no device is given (volume=DEV[,DEV...])")]
    NoDevice,
    #[error("the path of the file is empty")]
    NoPath,
    #[error("mount_options: {word:?}: want KEY=VALUE with KEY one of {known}")]
    UnknownSetting { word: String, known: String },
    #[error("mount_options: {word:?}: want {want}")]
    SettingValue { word: String, want: String },
    #[error("another job has the volume open with mount_options={have:?}, this job has {want:?}")]
    OtherSettings { have: String, want: String },
    #[error("the volume is read-only")]
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

/// The result of every fallible function of this crate.
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

    /// Returns the errno, as a positive number.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Library { source, .. } => source.errno(),
            Self::NoDevice
            | Self::NoPath
            | Self::UnknownSetting { .. }
            | Self::SettingValue { .. }
            | Self::Shim { .. } => EINVAL,
            Self::OtherSettings { .. } => EBUSY,
            Self::ReadOnly => EROFS,
            Self::NoMemory { .. } => ENOMEM,
            Self::Full => EAGAIN,
            Self::Stats { source, .. } => source.raw_os_error().unwrap_or(EIO),
            Self::Panic { .. } => EIO,
        }
    }

    /// Returns the error and its causes on one line.
    pub fn line(&self) -> String {
        line(self)
    }
}

/// Returns an error and its causes on one line.
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
