//! What makes the driver fail.

use xio_proto::ConfigError;

/// The driver could not be made, or cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The machine has no RDMA device, or the libraries or kernel modules for it are missing.
    #[error(
        "no RDMA device: neither hardware with its driver loaded (rdma link show) nor a software \
         one (rdma link add rxe0 type rxe netdev DEV); libibverbs and librdmacm must be installed \
         and /dev/infiniband/rdma_cm be there (modprobe rdma_ucm)"
    )]
    NoDevice,
    /// There are devices, but none that was meant.
    #[error("no RDMA device has the {0}")]
    NotFound(String),
    /// A setting that cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device offers less than is needed.
    #[error("the device {device} offers {have} {what}, {need} are needed")]
    TooSmall {
        /// The device.
        device: String,
        /// Of what.
        what: &'static str,
        /// How many.
        have: u64,
        /// How many are needed.
        need: u64,
    },
    /// Memory could not be registered because too little may be locked.
    #[error(
        "{need} bytes cannot be locked for the device, the limit is {limit}: raise it with \
         `ulimit -l unlimited`, or `memlock` in /etc/security/limits.conf"
    )]
    MemoryLimit {
        /// Bytes to be registered.
        need: u64,
        /// Bytes that the process may lock.
        limit: u64,
    },
    /// The process has registered memory with the library before it was prepared for forks
    /// ([`Options::fork_safe`](crate::Options::fork_safe)), and cannot be prepared any more.
    #[error(
        "the process has registered memory with libibverbs already, so that it cannot be prepared \
         for forks any more: make a driver, or call ibv_fork_init, before anything is registered, or \
         do without (`Options::fork_safe`) if it does not fork or the kernel is Linux 5.12 or later"
    )]
    LateForFork,
    /// The device is gone; all connections on it ended.
    #[error("the device was removed")]
    Removed,
    /// A call of the system's or of a library's failed.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*code))]
    Call {
        /// Its name.
        call: &'static str,
        /// The error number.
        code: i32,
    },
}

impl Error {
    /// A call failed.
    pub(crate) fn call(call: &'static str, code: i32) -> Self {
        Self::Call { call, code }
    }

    /// The first call failed, which tells whether there is RDMA at all.
    pub(crate) fn from_open(call: &'static str, code: i32) -> Self {
        match code {
            libc::ENODEV | libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP => Self::NoDevice,
            code => Self::call(call, code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kernel_and_missing_library_are_no_device() {
        for code in [libc::ENODEV, libc::ENOSYS, libc::ENOENT] {
            assert_eq!(Error::from_open("x", code), Error::NoDevice);
        }
        let error = Error::from_open("rdma_create_event_channel", libc::EMFILE);
        assert_eq!(
            error.to_string(),
            "rdma_create_event_channel: Too many open files (os error 24)"
        );
    }
}
