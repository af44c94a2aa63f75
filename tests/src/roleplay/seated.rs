//! Any driver in the place of one side of a recording.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use xio_proto::driver::{BufferError, BufferId, Capabilities, Driver, Key, Parts};
use xio_proto::{
    ConnectionId, Control, Data, Endpoint, Event, Instant, ListenerId, RemoteMemory, Segment,
    TaskId, TransportId, Work,
};

use super::seat::Seat;

/// A driver with a seat.
pub(super) struct Seated<D>(pub(super) D);

impl<D: Driver> Driver for Seated<D> {
    type Storage = D::Storage;
    type Trace = D::Trace;
    type Slots = D::Slots;
    type Error = D::Error;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn transport(&self) -> TransportId {
        self.0.transport()
    }
    fn look<R>(&self, run: impl FnOnce(&Endpoint<D::Storage, D::Trace>) -> R) -> R {
        self.0.look(run)
    }
    fn listening(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.0.listening(listener)
    }
    fn now(&mut self) -> Instant {
        self.0.now()
    }
    fn with<R>(
        &mut self,
        key: Key,
        run: impl FnOnce(Parts<'_, D::Storage, D::Trace, D::Slots>) -> R,
    ) -> R {
        self.0.with(key, run)
    }
    fn control(&mut self, key: Key, control: Control) {
        self.0.control(key, control);
    }
    fn work(&mut self, key: Key, work: Work) {
        self.0.work(key, work);
    }
    fn knows(&self, key: Key, segments: &[Segment]) -> bool {
        self.0.knows(key, segments)
    }
    fn hold(&mut self, key: Key, segments: &[Segment]) {
        self.0.hold(key, segments);
    }
    fn unhold(&mut self, key: Key, segments: &[Segment]) {
        self.0.unhold(key, segments);
    }
    fn lend(&mut self, key: Key, task: TaskId, segments: &[Segment]) {
        self.0.lend(key, task, segments);
    }
    fn keep(&mut self, key: Key, buffer: BufferId) {
        self.0.keep(key, buffer);
    }
    fn give_back(&mut self, key: Key, task: TaskId) {
        self.0.give_back(key, task);
    }
    fn take_event(&mut self, key: Key) -> Option<Event> {
        self.0.take_event(key)
    }
    fn poll(&mut self, timeout: Option<Duration>) -> Result<bool, D::Error> {
        self.0.poll(timeout)
    }
    fn allocate(&mut self, len: usize) -> Result<BufferId, BufferError> {
        self.0.allocate(len)
    }
    fn free(&mut self, buffer: BufferId) -> Result<(), BufferError> {
        self.0.free(buffer)
    }
    fn segment(&self, buffer: BufferId, part: Range<usize>) -> Result<Segment, BufferError> {
        self.0.segment(buffer, part)
    }
    fn with_buffer<R>(
        &mut self,
        buffer: BufferId,
        run: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, BufferError> {
        self.0.with_buffer(buffer, run)
    }
    fn with_data(&mut self, data: Data, run: impl FnMut(&[u8])) {
        self.0.with_data(data, run);
    }
}

impl<D: Driver> Seat for Seated<D> {
    fn room(&mut self, len: usize) -> Segment {
        let buffer = self.0.allocate(len).expect("memory");
        self.0.segment(buffer, 0..len).expect("inside")
    }
    fn filled(&mut self, bytes: &[u8]) -> Result<Segment, String> {
        let told = |error: BufferError| error.to_string();
        let buffer = self.0.allocate(bytes.len()).map_err(told)?;
        let write = |room: &mut [u8]| room.copy_from_slice(bytes);
        self.0.with_buffer(buffer, write).map_err(told)?;
        self.0.segment(buffer, 0..bytes.len()).map_err(told)
    }
    fn reach(
        &mut self,
        _: bool,
        _: ConnectionId,
        _: &RemoteMemory,
        _: u64,
    ) -> Result<(TaskId, Segment), String> {
        Err("recorded addresses are nobody's here".to_owned())
    }
    fn reached(&mut self, _: Segment) -> Result<Vec<u8>, String> {
        Err("nothing was reached".to_owned())
    }
    fn share(&mut self, _: RemoteMemory) -> Result<(), String> {
        Err("devices choose no addresses".to_owned())
    }
    fn unshare(&mut self) -> Result<(), String> {
        Ok(())
    }
}
