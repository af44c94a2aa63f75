//! libFuzzer's program for [`xio_fuzz::sim_schedule`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| xio_fuzz::sim_schedule(data));
