//! From an input to its method, and from a method's call to an observer that records.
#![allow(
    clippy::unit_arg,
    reason = "whatever a method returns becomes an `Applied`, also nothing"
)]

use super::{Applied, Bytes, Input};
use crate::endpoint::Endpoint;
use crate::input::Completion;
use crate::memory::{SlotId, Slots};
use crate::output::Work;
use crate::storage::Storage;
use crate::trace::Trace;
use crate::wire::Kind;

/// The first line of every method that changes an endpoint: for an observer that records, tells
/// it the input, calls the method again with the observer held back, and tells what came of it.
/// Without one it is nothing, since [`Trace::RECORDS`] is a constant.
macro_rules! recorded {
    ($self:ident, $variant:ident { $($fields:tt)* } => $call:expr) => {
        $crate::inputs::recorded!($self, $variant { $($fields)* } => $call, _result => &[])
    };
    ($self:ident, $variant:ident { $($fields:tt)* } => $call:expr, $result:ident => $frame:expr) => {
        if T::RECORDS && $self.begins_recording() {
            $self.trace.input(&$crate::Input::$variant { $($fields)* });
            let result = $call;
            let $result = &result;
            $self.ends_recording(&result.into(), $frame);
            return result;
        }
    };
}
pub(crate) use recorded;

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Calls the method that `input` is for, with its parameters, and returns what that returns.
    ///
    /// The bytes of a received frame are put into the slot of the receive first, unless there are
    /// none: a driver whose device has written them passes none.
    pub fn apply(&mut self, input: &Input<'_>, slots: &mut impl Slots) -> Applied {
        match *input {
            Input::AddTransport { limits } => self.add_transport(limits).into(),
            Input::AddPool { transport, memory } => self.add_pool(transport, memory).into(),
            Input::PollControl { transport } => self.poll_control(transport).into(),
            Input::PollWork { transport } => self.poll_work(transport, slots).into(),
            Input::PollEvent {} => self.poll_event().into(),
            Input::PollStream { transport } => self.poll_stream(transport).into(),
            Input::StreamWant { socket } => self.stream_want(socket).into(),
            _ => self.apply_session(input, slots),
        }
    }

    /// Commands about listeners, sessions and connections.
    fn apply_session(&mut self, input: &Input<'_>, slots: &mut impl Slots) -> Applied {
        match *input {
            Input::Listen {
                transport,
                address,
                ref options,
            } => self.listen(transport, address, options).into(),
            Input::Unlisten { listener } => self.unlisten(listener).into(),
            Input::TurnAway { listener, refusal } => self.turn_away(listener, refusal).into(),
            Input::Connect {
                now,
                transport,
                peer,
                ref setup,
                ref options,
            } => self
                .connect(now, transport, peer, setup, options, slots)
                .into(),
            Input::Accept {
                now,
                session,
                user,
                portals,
                private,
            } => self
                .accept(now, session, user, portals, private, slots)
                .into(),
            Input::Reject {
                now,
                session,
                reason,
                private,
            } => self.reject(now, session, reason, private, slots).into(),
            Input::Redirect {
                now,
                session,
                portals,
            } => self.redirect(now, session, portals, slots).into(),
            Input::ExportSession {
                session,
                joins,
                expires,
            } => self.export_session(session, joins, expires).into(),
            Input::ImportSession {
                now,
                ref ticket,
                user,
            } => self.import_session(now, ticket, user).into(),
            Input::Join {
                now,
                session,
                transport,
                portal,
                ref options,
            } => self.join(now, session, transport, portal, options).into(),
            Input::Close { now, connection } => self.close(now, connection).into(),
            Input::Abort { now, connection } => self.abort(now, connection).into(),
            Input::Stop { now, bound } => self.stop(now, bound).into(),
            Input::ResolvePortal {
                now,
                connection,
                index,
                peer,
            } => self
                .resolve_portal(now, connection, index, peer, slots)
                .into(),
            Input::SetPolicy { connection, policy } => self.set_policy(connection, policy).into(),
            _ => self.apply_message(input, slots),
        }
    }

    /// Commands about messages and memory.
    fn apply_message(&mut self, input: &Input<'_>, slots: &mut impl Slots) -> Applied {
        match *input {
            Input::ReserveSlot { connection } => self.reserve_slot(connection).into(),
            Input::ReserveAnswerSlot { request } => self.reserve_answer_slot(request).into(),
            Input::ReturnSlot { slot } => self.return_slot(slot).into(),
            Input::Send {
                connection,
                ref message,
                ref options,
            } => self.send(connection, message, options).into(),
            Input::SendOneWay {
                connection,
                ref message,
                ref options,
            } => self.send_one_way(connection, message, options).into(),
            Input::Respond {
                request,
                ref message,
            } => self.respond(request, message).into(),
            Input::Read {
                connection,
                local,
                ref remote,
                user,
                deadline,
            } => self.read(connection, local, remote, user, deadline).into(),
            Input::Write {
                connection,
                local,
                ref remote,
                user,
                deadline,
            } => self.write(connection, local, remote, user, deadline).into(),
            Input::Provide { task, segments } => self.provide(task, segments).into(),
            Input::Refuse { task, status } => self.refuse(task, status).into(),
            Input::SetReceipt { task, code } => self.set_receipt(task, code).into(),
            Input::Cancel { task } => self.cancel(task).into(),
            Input::Release { task } => self.release(task).into(),
            Input::Register {
                transport,
                addr,
                len,
                access,
                user,
            } => self.register(transport, addr, len, access, user).into(),
            Input::Revoke { region } => self.revoke(region).into(),
            _ => self.apply_device(input, slots),
        }
    }

    /// What drivers of devices report.
    fn apply_device(&mut self, input: &Input<'_>, slots: &mut impl Slots) -> Applied {
        match *input {
            Input::Cm { now, nexus, event } => self.handle_cm(now, nexus, event).into(),
            Input::ConnectRequest {
                now,
                transport,
                ref request,
            } => self.handle_connect_request(now, transport, request).into(),
            Input::QueuePair { now, nexus, made } => {
                self.handle_queue_pair(now, nexus, made).into()
            }
            Input::Completion {
                now,
                completion,
                frame,
            } => {
                self.put_frame(completion, frame, slots);
                self.handle_completion(now, completion, slots).into()
            }
            Input::SharedCompletion {
                now,
                nexus,
                completion,
                frame,
            } => {
                self.put_frame(completion, frame, slots);
                self.handle_shared_completion(now, nexus, completion, slots)
                    .into()
            }
            Input::LastReceive { now, nexus } => self.handle_last_receive(now, nexus).into(),
            Input::ListenerLost { now, listener } => {
                self.handle_listener_lost(now, listener).into()
            }
            Input::PostFailed { now, wr, error } => self.handle_post_failed(now, wr, error).into(),
            Input::DriverFailed { now, nexus, reason } => {
                self.handle_driver_failed(now, nexus, reason).into()
            }
            Input::Destroyed { now, nexus } => self.handle_destroyed(now, nexus).into(),
            Input::ListenFailed {
                now,
                listener,
                error,
            } => self.handle_listen_failed(now, listener, error).into(),
            Input::Region { now, region, keys } => self.handle_region(now, region, keys).into(),
            Input::RegionRevoked { now, region } => self.handle_region_revoked(now, region).into(),
            Input::Timeout { now } => self.handle_timeout(now).into(),
            Input::Clock { now } => self.handle_clock(now).into(),
            _ => self.apply_socket(input, slots),
        }
    }

    /// What drivers of sockets report.
    fn apply_socket(&mut self, input: &Input<'_>, slots: &mut impl Slots) -> Applied {
        match *input {
            Input::SocketAccepted {
                now,
                transport,
                listener,
                peer,
                local,
            } => self
                .handle_socket_accepted(now, transport, listener, peer, local)
                .into(),
            Input::StreamsConnected {
                now,
                nexus,
                control,
                data,
            } => self
                .handle_streams_connected(now, nexus, control, data)
                .into(),
            Input::StreamBytes { now, socket, bytes } => {
                self.handle_stream_bytes(now, socket, bytes.0, slots).into()
            }
            Input::StreamPayload { now, socket, bytes } => {
                self.handle_stream_payload(now, socket, bytes, slots).into()
            }
            Input::StreamProgress { now, socket } => {
                self.handle_stream_progress(now, socket).into()
            }
            Input::SocketClosed { now, socket } => self.handle_socket_closed(now, socket).into(),
            _ => unreachable!("{} is applied before", input.method()),
        }
    }

    /// A slot that a device has written: the one of a receive that is done. What a completion of
    /// an earlier life names, the device may be writing now.
    fn received_slot(&self, completion: Completion) -> Option<SlotId> {
        let index = completion.wr.index();
        let row = self.s.view().slots.get(index as usize)?;
        let done = completion.wr.is_recv() && completion.wr.matches(row.generation);
        (done && index < self.g.config.rx_slots).then_some(SlotId(index))
    }

    fn put_frame(&self, completion: Completion, frame: Bytes<'_>, slots: &mut impl Slots) {
        if let Some(slot) = self.received_slot(completion)
            && let Some(place) = slots.slot_mut(slot).get_mut(..frame.0.len())
        {
            place.copy_from_slice(frame.0);
        }
    }

    /// What a device has received.
    pub(crate) fn received_frame<'s>(
        &self,
        completion: Completion,
        slots: &'s impl Slots,
    ) -> Bytes<'s> {
        let slot = self.received_slot(completion).map(|slot| slots.slot(slot));
        let len = completion.len as usize;
        Bytes(slot.and_then(|slot| slot.get(..len)).unwrap_or_default())
    }

    /// What the endpoint wrote of a frame: all of it but the user's header and data.
    pub(crate) fn written_frame<'s>(&self, work: Option<&Work>, slots: &'s impl Slots) -> &'s [u8] {
        let Some(Work::Send { nexus, head, .. }) = work else {
            return &[];
        };
        let bytes = head.of(slots.slot(SlotId(head.slot)));
        let view = self.s.view();
        let framing = view.nexuses[nexus.index()].framing;
        // Not `peek_kind`: data that lies elsewhere may be part of what the frame's length covers.
        let word = bytes.get(4..).and_then(|rest| rest.first_chunk());
        let word = word.map_or(0, |word| u32::from_be_bytes(*word));
        if Kind::from_word(word, framing.dialect()).is_ok_and(Kind::is_application) {
            let own = self
                .g
                .config
                .headroom()
                .saturating_sub(head.offset as usize);
            return &bytes[..own.min(bytes.len())];
        }
        bytes
    }

    /// True when the observer wants the input that is about to be carried out.
    #[inline]
    pub(crate) fn begins_recording(&mut self) -> bool {
        if self.g.recording || !self.trace.is_recording() {
            return false;
        }
        self.g.recording = true;
        true
    }

    #[cold]
    pub(crate) fn ends_recording(&mut self, applied: &Applied, frame: &[u8]) {
        self.g.recording = false;
        self.trace.output(applied, frame);
    }
}
