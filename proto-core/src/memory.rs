//! Memory as plain values: slots that the driver owns, and segments of the user.

/// One of the driver's message slots, all of the size given in the configuration. Indexes
/// `0..rx_slots` are for receiving, the rest for sending.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

/// Bytes inside a slot.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    /// The slot's number.
    pub slot: u32,
    /// First byte, from the slot's start.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

impl Span {
    pub(crate) const EMPTY: Self = Self {
        slot: 0,
        offset: 0,
        len: 0,
    };

    /// The bytes, out of the whole slot.
    pub fn of(self, slot: &[u8]) -> &[u8] {
        &slot[self.offset as usize..(self.offset + self.len) as usize]
    }
}

/// A scatter/gather entry of user memory. On sockets `addr` is an opaque cookie that the driver
/// gave out or understands, and the keys are 0.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Segment {
    /// Address, or the driver's cookie.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key for the local device.
    pub lkey: u32,
    /// Key that the peer may use; 0 if it may not.
    pub rkey: u32,
}

/// How many segments a message holds by itself; longer lists live in the shared extent table.
pub const SEGMENTS_INLINE: usize = 4;

/// Gives the endpoint the bytes of the driver's slots while an input is handled or work polled.
pub trait Slots {
    /// The whole slot.
    fn slot(&self, slot: SlotId) -> &[u8];
    /// The whole slot, to write headers into.
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8];
}

impl<T: Slots + ?Sized> Slots for &mut T {
    fn slot(&self, slot: SlotId) -> &[u8] {
        (**self).slot(slot)
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        (**self).slot_mut(slot)
    }
}

/// Segments of a message that a work request touches: resolve them with
/// [`Endpoint::segments`](crate::Endpoint::segments) before the next call that changes state.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct SegmentSpan {
    pub(crate) task: u32,
    pub(crate) list: ListKind,
    /// Bytes to skip from the start of the list.
    pub(crate) skip: u64,
    /// Bytes in all; 0 means there are none.
    pub len: u64,
}

impl SegmentSpan {
    pub(crate) const EMPTY: Self = Self {
        task: 0,
        list: ListKind::Out,
        skip: 0,
        len: 0,
    };

    /// True when no user memory takes part.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Which of a message's two lists.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ListKind {
    /// What is sent.
    Out,
    /// Where received data goes.
    In,
}
