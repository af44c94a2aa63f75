//! libFuzzer's program for [`xio_fuzz::ops`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xio_fuzz::ops(data));
