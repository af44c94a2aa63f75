//! What makes the driver fail.

use std::fmt;
use std::io;

use xio_proto::ConfigError;

/// The driver could not be made, or cannot go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot work.
    Config(ConfigError),
    /// The system refused the event queue that everything hangs on.
    Events(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(e) => write!(f, "{e}"),
            Self::Events(e) => write!(f, "waiting for socket events: {e}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(e) => Some(e),
            Self::Events(e) => Some(e),
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}
