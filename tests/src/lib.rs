//! Shared model, golden vectors and suites of xio.

pub mod golden;
pub mod pair;
pub mod stream_pair;
pub mod talk;
