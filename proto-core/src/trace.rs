//! A hook for observers that costs nothing when unused.

use crate::inputs::{Applied, Input};

/// Told about every transition and every rare path, as it happens; and about every input and what
/// came of it, if it [records](Self::RECORDS).
pub trait Trace {
    /// Whether [`input`](Self::input) and [`output`](Self::output) are ever called. A constant:
    /// with `false` there is not even a branch.
    const RECORDS: bool = false;

    /// `machine` (index in [`MACHINES`](crate::MACHINES)) number `index` took `input` in `state`.
    #[inline(always)]
    fn transition(&mut self, _machine: u8, _index: u32, _state: u8, _input: u8, _next: u8) {}
    /// A rare path was taken; names are listed in [`MARKS`](crate::MARKS).
    #[inline(always)]
    fn mark(&mut self, _name: &'static str) {}

    /// Whether the next input is wanted; asked only of an observer that records.
    #[inline(always)]
    fn is_recording(&self) -> bool {
        Self::RECORDS
    }
    /// An input is about to be carried out. Each input comes once, polls too, in the order of the
    /// calls; [`output`](Self::output) follows.
    #[inline(always)]
    fn input(&mut self, _input: &Input<'_>) {}
    /// What came of the input before. `frame` is what the endpoint wrote of a frame that is to be
    /// sent, without the user's header and data; empty for all others.
    #[inline(always)]
    fn output(&mut self, _applied: &Applied, _frame: &[u8]) {}
}

/// No observer.
#[derive(Copy, Clone, Default, Debug)]
pub struct NoTrace;

impl Trace for NoTrace {}
