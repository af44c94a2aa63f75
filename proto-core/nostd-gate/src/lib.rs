//! The core in a program that has no std, no allocator and its own panic handler.
//!
//! That this crate links is half of the proof: a dependency that allocates fails with "no global
//! memory allocator found", one that brings std with "duplicate lang item `panic_impl`". That it
//! runs is the other half: `main.c` calls [`gate_run`], which drives the core and panics where
//! something is not as it must be.
#![no_std]

mod codec;
mod connection;

use core::panic::PanicInfo;

unsafe extern "C" {
    /// Reports where the panic happened and ends the process.
    fn gate_panicked(file: *const u8, file_len: usize, line: u32) -> !;
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let (file, line) = info
        .location()
        .map_or(("?", 0), |place| (place.file(), place.line()));
    // SAFETY: main.c reads `file_len` bytes from `file`, which is a `str` of that length, and
    // does not return.
    unsafe { gate_panicked(file.as_ptr(), file.len(), line) }
}

/// Drives the core and returns how many steps it took.
///
/// # Panics
/// When something is not as it must be.
#[unsafe(no_mangle)]
pub extern "C" fn gate_run() -> u32 {
    codec::run() + connection::run()
}
