//! Shared model, golden vectors, role play and suites of xio.

pub mod golden;
pub mod pair;
pub mod roleplay;
pub mod stream_pair;
pub mod tables;
pub mod talk;
