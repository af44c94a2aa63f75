//! A hook for observers that costs nothing when unused.

/// Told about every transition and every rare path, as it happens.
pub trait Trace {
    /// `machine` (index in [`MACHINES`](crate::MACHINES)) number `index` took `input` in `state`.
    #[inline(always)]
    fn transition(&mut self, _machine: u8, _index: u32, _state: u8, _input: u8, _next: u8) {}
    /// A rare path was taken; names are listed in [`MARKS`](crate::MARKS).
    #[inline(always)]
    fn mark(&mut self, _name: &'static str) {}
}

/// No observer.
#[derive(Copy, Clone, Default, Debug)]
pub struct NoTrace;

impl Trace for NoTrace {}
