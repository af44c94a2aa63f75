//! `xio devices`: RDMA devices, and what keeps one from being used.

use anyhow::Result;

use crate::args::DevicesArgs;
use crate::output::Output;

#[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
mod list;

#[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
pub(crate) use list::first_address;

/// Lists the devices and returns whether one of them can be used.
///
/// # Errors
/// When the list cannot be had or printed.
#[cfg(any(feature = "rdma", feature = "rdma-dlopen"))]
pub(crate) fn run(_: &DevicesArgs, out: &Output) -> Result<bool> {
    list::run(out)
}

/// That this program was built without RDMA.
///
/// # Errors
/// Always.
#[cfg(not(any(feature = "rdma", feature = "rdma-dlopen")))]
pub(crate) fn run(_: &DevicesArgs, _: &Output) -> Result<bool> {
    Err(crate::talk::transport::built_without_verbs())
}
