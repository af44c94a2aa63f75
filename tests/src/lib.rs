//! Shared model, golden vectors, role play and suites of xio.

pub mod alphabet;
pub mod conformance;
pub mod golden;
pub mod hostile;
pub mod pair;
pub mod peers;
pub mod pingpong;
pub mod rig;
pub mod roleplay;
pub mod siege;
pub mod stream_pair;
pub mod tables;
pub mod talk;

/// The example in the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;
