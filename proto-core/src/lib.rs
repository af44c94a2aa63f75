//! The xio protocol: what libxio speaks on RDMA and on TCP, as a pure state machine.
#![no_std]
#![forbid(unsafe_code)]

pub mod wire;
