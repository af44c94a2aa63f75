//! Fuzz targets as plain functions: libFuzzer calls them from `fuzz_targets/`, the program
//! `replay` with the committed corpora, and the simulator's and model's tests may too.
//!
//! A target panics when a rule is broken and otherwise returns; any bytes are a fair input.
#![forbid(unsafe_code)]

/// A fuzz target: its name, which is also its corpus' folder, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[("wire_rdma", wire_rdma), ("wire_tcp", wire_tcp)];

/// Bytes as one RDMA receive delivers them.
pub fn wire_rdma(data: &[u8]) {
    let _ = data;
}

/// Bytes as sockets deliver them.
pub fn wire_tcp(data: &[u8]) {
    let _ = data;
}
