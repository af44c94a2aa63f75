//! What the users of a role play need of an endpoint: its commands, and memory.

use xio_proto::driver::Driver;
use xio_proto::{ConnectionId, Data, Message, RemoteMemory, Segment, SlotId, Span, TaskId};

/// An endpoint whose user is a recorded program's.
pub(super) trait Seat: Driver {
    /// Memory to receive into.
    fn room(&mut self, len: usize) -> Segment;
    /// Memory with these bytes.
    fn filled(&mut self, bytes: &[u8]) -> Result<Segment, String>;
    /// Writes the recorded pattern into the peer's memory, or reads it.
    fn reach(
        &mut self,
        write: bool,
        connection: ConnectionId,
        remote: &RemoteMemory,
        user: u64,
    ) -> Result<(TaskId, Segment), String>;
    /// What was read.
    fn reached(&mut self, segment: Segment) -> Result<Vec<u8>, String>;
    /// Lets peers reach memory at an address of the recording's choice.
    fn share(&mut self, memory: RemoteMemory) -> Result<(), String>;
    /// Takes it back.
    fn unshare(&mut self) -> Result<(), String>;

    /// The bytes of a span of a slot.
    fn text(&mut self, span: Span) -> Vec<u8> {
        self.with_span(span, <[u8]>::to_vec)
    }
    /// The data of a received message.
    fn seen(&mut self, data: Data) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        self.with_data(data, |piece| bytes.extend_from_slice(piece));
        Ok(bytes)
    }
}

/// What is sent: an application header and data.
#[derive(Debug)]
pub(super) struct Content<'a> {
    pub(super) header: &'a [u8],
    pub(super) data: &'a [u8],
    pub(super) prompt: bool,
    pub(super) user: u64,
}

/// Where a message's header and data were put.
#[derive(Debug)]
pub(super) struct Placed {
    slot: Option<SlotId>,
    header_len: u16,
    data: Vec<Segment>,
    prompt: bool,
    user: u64,
}

impl Placed {
    pub(super) fn message(&self) -> Message<'_> {
        Message {
            slot: self.slot,
            header_len: self.header_len,
            data: &self.data,
            user: self.user,
            prompt: self.prompt,
            ..Message::default()
        }
    }
}

/// Puts a message where the endpoint takes it from: its header in a slot, its data in memory.
pub(super) fn place<H: Seat>(
    host: &mut H,
    connection: ConnectionId,
    content: &Content<'_>,
) -> Result<Placed, String> {
    let &Content {
        header,
        data,
        prompt,
        user,
    } = content;
    let mut slot = None;
    if !header.is_empty() {
        let taken = host.reserve_slot(connection);
        let taken = taken.map_err(|error| format!("no slot: {error}"))?;
        let write = |room: &mut [u8]| room[..header.len()].copy_from_slice(header);
        host.with_slot(taken, write).ok_or("the slot is gone")?;
        slot = Some(taken);
    }
    let mut segments = Vec::new();
    if !data.is_empty() {
        segments.push(host.filled(data)?);
    }
    Ok(Placed {
        slot,
        header_len: header.len() as u16,
        data: segments,
        prompt,
        user,
    })
}
