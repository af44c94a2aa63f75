//! What two endpoints live in: it moves their bytes, tells the time, and has their users' memory.

use xio_proto::{
    Applied, Config, Event, FreeRows, Input, Instant, Segment, SegmentSpan, SlotId, Span,
    TransportId,
};

/// Two endpoints and what is between them, as their users see it.
pub trait Net {
    /// During a command nothing else happens.
    const STILL: bool;
    /// The time, as the endpoint of that side sees it.
    fn now(&self, i: usize) -> Instant;
    /// The time in nanoseconds, which never goes back.
    fn at(&self) -> u64;
    /// What connections are made over.
    fn transport(&self) -> TransportId;
    /// A command enters the endpoint.
    fn apply(&mut self, i: usize, input: &Input<'_>) -> Applied;
    /// Whose event comes next, where events have come that are not heard yet.
    fn waiting(&self) -> Option<usize>;
    /// The next event for the user.
    fn event(&mut self, i: usize) -> Option<Event>;
    /// Settings of the endpoint.
    fn config(&self, i: usize) -> &Config;
    /// What is free in the endpoint's tables.
    fn free_rows(&self, i: usize) -> FreeRows;
    /// All that decides how the endpoint goes on.
    fn state(&self, i: usize) -> u64;
    /// What it is at, for complaints.
    fn shown(&self, i: usize) -> String;

    /// A slot, to write a message.
    fn slot_mut(&mut self, i: usize, slot: SlotId) -> &mut [u8];
    /// Bytes of a slot.
    fn span(&self, i: usize, span: Span) -> &[u8];
    /// Where data lies.
    fn segments(&self, i: usize, span: SegmentSpan) -> Vec<Segment>;

    /// Puts bytes into memory of the user's and says where they begin.
    fn put(&mut self, i: usize, bytes: Vec<u8>) -> u64;
    /// Memory that is not needed any more.
    fn free(&mut self, i: usize, addr: u64);
    /// Segments that cut so many bytes, from the beginning of a piece of memory, into pieces.
    fn cut(&self, i: usize, addr: u64, len: usize, pieces: usize) -> Vec<Segment>;
    /// Bytes of all segments, if they are there.
    fn gather(&self, i: usize, segments: &[Segment]) -> Option<Vec<u8>>;
    /// All bytes of the piece that begins there.
    fn block(&self, i: usize, addr: u64) -> Vec<u8>;
}
