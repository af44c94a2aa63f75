//! libFuzzer's program for [`xio_fuzz::hostile_peer`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xio_fuzz::hostile_peer(data));
