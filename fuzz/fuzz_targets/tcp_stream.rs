//! libFuzzer's program for [`xio_fuzz::tcp_stream`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xio_fuzz::tcp_stream(data));
