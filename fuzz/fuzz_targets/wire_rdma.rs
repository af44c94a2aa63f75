//! libFuzzer's program for [`xio_fuzz::wire_rdma`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xio_fuzz::wire_rdma(data));
