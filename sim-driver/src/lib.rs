//! Deterministic simulator and driver for xio.
