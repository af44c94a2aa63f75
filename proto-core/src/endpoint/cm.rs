//! Life of transport connections: communication-manager events and driver reports in, control
//! outputs out. The table is in `state/nexus.rs`, its description in PROTOCOL.md 2.

use core::net::SocketAddr;
use core::time::Duration;

use super::Endpoint;
use super::snapshot::count;
use crate::config::ConnectOptions;
use crate::entries::{Due, Listener, Nexus, SlotUse, Stage, Usual};
use crate::error::{CommandError, Reason, Refusal, Resource, Step, WorkStatus};
use crate::ids::{ListenerId, NONE, NexusId, TransportId};
use crate::input::{CmEvent, CmKind};
use crate::inputs::recorded;
use crate::output::{ConnectParams, Control, PrivateData};
use crate::state::nexus::{self, Action, Input, State};
use crate::storage::Storage;
use crate::table::{queue_pop, queue_push};
use crate::time::Instant;
use crate::timer::Timer;
use crate::trace::Trace;
use crate::wire::{Dialect, Framing};

/// A peer that asks to connect.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnectRequest<'a> {
    /// The listener it reached.
    pub listener: ListenerId,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The address it reached.
    pub local: Option<SocketAddr>,
    /// How bytes are laid on the transport.
    pub framing: Framing,
    /// Private data of the connect request.
    pub private: &'a [u8],
}

fn classify(event: &CmEvent<'_>) -> (Input, Option<Reason>) {
    let status = event.status;
    match (event.kind, status) {
        (CmKind::AddrResolved, 0) => (Input::AddrResolved, None),
        (CmKind::RouteResolved, 0) => (Input::RouteResolved, None),
        (CmKind::Established, 0) => (Input::Established, None),
        (CmKind::AddrResolved | CmKind::AddrError, _) => {
            (Input::AddrError, Some(Reason::AddressError(status)))
        }
        (CmKind::RouteResolved | CmKind::RouteError, _) => {
            (Input::RouteError, Some(Reason::RouteError(status)))
        }
        (CmKind::ConnectRequest, _) => (Input::ConnectRequest, None),
        (CmKind::ConnectResponse, 0) => (Input::ConnectResponse, None),
        (CmKind::Established | CmKind::ConnectResponse | CmKind::ConnectError, _) => {
            (Input::ConnectError, Some(Reason::ConnectError(status)))
        }
        (CmKind::Unreachable, _) => (Input::Unreachable, Some(Reason::Unreachable(status))),
        (CmKind::Rejected, _) => {
            let reason = PrivateData::refusal_of(event.private).unwrap_or(Reason::Refused);
            (Input::Rejected, Some(reason))
        }
        (CmKind::Disconnected, _) => (Input::Disconnected, Some(Reason::Disconnected)),
        (CmKind::DeviceRemoval, _) => (Input::DeviceRemoval, Some(Reason::DeviceRemoved)),
        (CmKind::AddrChange, _) => (Input::AddrChange, Some(Reason::Disconnected)),
        (CmKind::MulticastJoin, _) => (Input::MulticastJoin, None),
        (CmKind::MulticastError, _) => (Input::MulticastError, None),
        (CmKind::TimewaitExit, _) => (Input::TimewaitExit, None),
        (CmKind::Unknown(_), _) => (Input::UnknownCm, None),
    }
}

impl<S: Storage, T: Trace> Endpoint<S, T> {
    /// Takes an event of the communication manager. One of a nexus whose life is over is counted
    /// and ignored, and so is one that means nothing in the nexus's state.
    pub fn handle_cm(&mut self, now: Instant, nexus: NexusId, event: CmEvent<'_>) {
        recorded!(self, Cm { now, nexus, event } => self.handle_cm(now, nexus, event));
        self.set_now(now);
        let Some(n) = self.find_nexus(nexus) else {
            self.g.counters.stale_cm += 1;
            return;
        };
        let (mut input, mut reason) = classify(&event);
        let row = self.nexus(n);
        if input == Input::Established && row.framing == Framing::TcpDual && !row.server {
            // Without the two ports the peer could not pair the sockets.
            (input, reason) = (Input::DriverFailed, Some(Reason::DriverFailed(0)));
        }
        let row = self.nexus(n);
        if event.local.is_some() {
            row.local = event.local;
        }
        if input == Input::Rejected && !matches!(row.state, State::Connecting | State::Accepting) {
            // It was connected: nobody refuses it any more, it is lost.
            reason = Some(Reason::Disconnected);
        }
        if input == Input::Established && row.state == State::Connecting {
            self.answered_private(n, event.private);
        }
        self.nexus_input(n, input, reason);
    }

    /// Takes a peer's request to connect. Peers on streams come through
    /// [`handle_socket_accepted`](Self::handle_socket_accepted) instead.
    ///
    /// # Errors
    /// Why the driver must refuse it: nobody listens, or there is no room.
    pub fn handle_connect_request(
        &mut self,
        now: Instant,
        transport: TransportId,
        request: &ConnectRequest<'_>,
    ) -> Result<NexusId, Reason> {
        recorded!(self, ConnectRequest { now, transport, request: *request } => self.handle_connect_request(now, transport, request));
        self.set_now(now);
        // Sockets come one by one, and are no connection before they have said what they are.
        if request.framing != Framing::Rdma {
            return Err(Reason::Refused);
        }
        let n = self.serve(transport, request)?;
        self.offered_private(n, request.private);
        Ok(self.nexus_id(n))
    }

    /// Whether a listener is there, on this transport.
    pub(crate) fn listens(&mut self, transport: TransportId, listener: ListenerId) -> bool {
        let row = self.s.tables().listeners.get(listener.index());
        row.is_some_and(|l| {
            l.live && l.generation == listener.generation() && l.transport == transport.0
        })
    }

    /// Opens a server's nexus. The last row of larger tables is kept for telling a peer on
    /// streams that there is no room.
    pub(crate) fn serve(
        &mut self,
        transport: TransportId,
        request: &ConnectRequest<'_>,
    ) -> Result<u32, Reason> {
        if !self.listens(transport, request.listener) {
            return Err(Reason::Refused);
        }
        let stream = request.framing != Framing::Rdma;
        let listeners = self.s.tables().listeners;
        let turned_away = listeners[request.listener.index()].turns_away;
        if !stream {
            if let Some(refusal) = turned_away {
                return Err(Reason::TurnedAway(refusal));
            }
            self.receives_fit(transport.0)?;
        }
        let spare = stream && self.s.tables().nexuses.len() >= 4 && self.g.nexuses.free() == 1;
        let Ok(n) = self.take_nexus(transport, request.peer, request.framing) else {
            let have = 0;
            return Err(Reason::NoResources {
                what: Resource::Nexuses,
                need: 1,
                have,
            });
        };
        let nexus = self.nexus(n);
        nexus.server = true;
        nexus.listener = request.listener.at();
        nexus.local = request.local;
        let no_room = spare.then_some(Refusal::NoResources { need: 1, have: 0 });
        nexus.refuse_status = turned_away.or(no_room).map_or(0, Refusal::status);
        self.nexus_input(n, Input::Request, None);
        Ok(n)
    }

    /// Takes the driver's word that a queue pair (or sockets) could be made, or its error number.
    pub fn handle_queue_pair(&mut self, now: Instant, nexus: NexusId, made: Result<(), i32>) {
        recorded!(self, QueuePair { now, nexus, made } => self.handle_queue_pair(now, nexus, made));
        self.set_now(now);
        let Some(n) = self.find_nexus(nexus) else {
            self.g.counters.stale_cm += 1;
            return;
        };
        match made {
            Ok(()) => {
                self.nexus_input(n, Input::QpReady, None);
            }
            Err(error) => {
                self.nexus_input(n, Input::DriverFailed, Some(Reason::DriverFailed(error)));
            }
        };
    }

    /// Takes the driver's word that it failed on a nexus (an asynchronous event of its queue
    /// pair, a control output that could not be carried out).
    pub fn handle_driver_failed(&mut self, now: Instant, nexus: NexusId, reason: Reason) {
        recorded!(self, DriverFailed { now, nexus, reason } => self.handle_driver_failed(now, nexus, reason));
        self.set_now(now);
        if let Some(n) = self.find_nexus(nexus) {
            self.nexus_input(n, Input::DriverFailed, Some(reason));
        } else {
            self.g.counters.stale_cm += 1;
        }
    }

    /// Takes the driver's word that a listener could not be set up.
    pub fn handle_listen_failed(&mut self, now: Instant, listener: ListenerId, error: i32) {
        recorded!(self, ListenFailed { now, listener, error } => self.handle_listen_failed(now, listener, error));
        self.set_now(now);
        if let Some(l) = self.live_listener(listener) {
            l.failed = Some(error);
            self.g.listen_failed = true;
            self.g.rare_events = true;
        }
    }

    /// Takes the driver's word that the device which a listener was on is gone
    /// (`RDMA_CM_EVENT_DEVICE_REMOVAL` on its id); the driver has let go of it already. Nobody can
    /// connect there any more. One that is not listening is counted and ignored.
    pub fn handle_listener_lost(&mut self, now: Instant, listener: ListenerId) {
        recorded!(self, ListenerLost { now, listener } => self.handle_listener_lost(now, listener));
        self.set_now(now);
        if let Some(l) = self.live_listener(listener) {
            l.live = false;
            l.lost = true;
            l.due_listen = false;
            self.g.listen_failed = true;
            self.g.rare_events = true;
        } else {
            self.g.counters.stale_cm += 1;
        }
    }

    fn live_listener(&mut self, listener: ListenerId) -> Option<&mut Listener> {
        let row = self.s.tables().listeners.get_mut(listener.index())?;
        (row.live && row.generation == listener.generation()).then_some(row)
    }

    /// Takes the driver's word that a queue pair is destroyed: nothing of it is touched any
    /// more, so everything still out comes back now.
    pub fn handle_destroyed(&mut self, now: Instant, nexus: NexusId) {
        recorded!(self, Destroyed { now, nexus } => self.handle_destroyed(now, nexus));
        self.set_now(now);
        if let Some(n) = self.find_nexus(nexus) {
            self.nexus_input(n, Input::Destroyed, None);
        } else {
            self.g.counters.stale_cm += 1;
        }
    }

    /// Finds a nexus that a new connection of a session may share: one without a connection of
    /// the same session, as frames say only which session they are for.
    pub(crate) fn find_shared(
        &mut self,
        session: u32,
        transport: TransportId,
        peer: SocketAddr,
        framing: Framing,
        options: &ConnectOptions,
    ) -> Option<u32> {
        let t = self.s.tables();
        let mut n = t.nexuses[bucket(&peer, t.nexuses.len())].bucket;
        while n != NONE {
            let nexus = &self.s.tables().nexuses[n as usize];
            let same = nexus.transport == transport.0
                && nexus.peer == peer
                && nexus.framing == framing
                && (options.local.is_none() || options.local == nexus.local);
            let alive = !matches!(
                nexus.state,
                State::Disconnecting | State::Draining | State::Destroying | State::Vacant
            );
            let next = nexus.hash_next;
            // Its setup must go with an introduction: as the first, or when all is agreed.
            let says_who = options.only_with.is_none()
                || framing == Framing::Rdma
                || nexus.agreement.stage == Stage::On;
            if same && alive && nexus.shareable && says_who && !self.has_session(n, session) {
                return Some(n);
            }
            n = next;
        }
        None
    }

    /// Whether a connection of the session is on the nexus.
    pub(crate) fn has_session(&mut self, n: u32, session: u32) -> bool {
        self.connection_on(n, session).is_some()
    }

    /// The connection of a session that is on a nexus.
    pub(crate) fn connection_on(&mut self, n: u32, session: u32) -> Option<u32> {
        let mut c = self.nexus(n).connections;
        while c != NONE {
            let row = self.connection(c);
            if row.session == session {
                return Some(c);
            }
            c = row.nexus_next;
        }
        None
    }

    /// Opens a client's nexus.
    pub(crate) fn open_nexus(
        &mut self,
        transport: TransportId,
        peer: SocketAddr,
        options: &ConnectOptions,
    ) -> Result<u32, CommandError> {
        let framing = self.framing(transport, options);
        if framing == Framing::Rdma && self.receives_fit(transport.0).is_err() {
            return Err(CommandError::Full(Resource::ReceiveSlots));
        }
        self.sockets_fit(framing)?;
        let n = self.take_nexus(transport, peer, framing)?;
        self.open_sockets(n);
        let nexus = self.nexus(n);
        let first = options.only_with.is_some() && framing != Framing::Rdma;
        nexus.shareable = !options.own_nexus && !first;
        nexus.local = options.local;
        let t = self.s.tables();
        let home = bucket(&peer, t.nexuses.len());
        t.nexuses[n as usize].hash_next = t.nexuses[home].bucket;
        t.nexuses[home].bucket = n;
        self.nexus_input(n, Input::Open, None);
        Ok(n)
    }

    pub(crate) fn framing(&mut self, transport: TransportId, options: &ConnectOptions) -> Framing {
        match (
            self.transport(transport.0).limits.dialect,
            options.dual_stream,
        ) {
            (Dialect::Rdma, _) => Framing::Rdma,
            (Dialect::Tcp, true) => Framing::TcpDual,
            (Dialect::Tcp, false) => Framing::TcpSingle,
        }
    }

    fn take_nexus(
        &mut self,
        transport: TransportId,
        peer: SocketAddr,
        framing: Framing,
    ) -> Result<u32, CommandError> {
        let t = self.s.tables();
        let n = self
            .g
            .nexuses
            .take(t.nexuses)
            .ok_or(CommandError::Full(Resource::Nexuses))?;
        let row = &mut t.nexuses[n as usize];
        let generation = row.generation;
        let bucket = row.bucket;
        let known = row.agreement.bucket;
        *row = Nexus {
            generation,
            bucket,
            // Those that an earlier one left with users come back some day.
            tx_held: row.tx_held,
            ..Nexus::VACANT
        };
        row.agreement.bucket = known;
        row.transport = transport.0;
        row.peer = peer;
        row.framing = framing;
        row.frame_max = self.g.config.buffer_size;
        let receiving = self.g.receiving + u32::from(framing == Framing::Rdma);
        self.g.set_receiving(receiving, t.nexuses.len());
        Ok(n)
    }

    /// Looks the input up, moves the nexus, and does what the table says. Returns the action, so
    /// that a frame's caller knows whether to deliver it.
    pub(crate) fn nexus_input(&mut self, n: u32, input: Input, reason: Option<Reason>) -> Action {
        let row = self.nexus(n);
        let from = row.state;
        let (next, action) = nexus::lookup(from, input);
        row.state = next;
        if next != from {
            row.usual = Usual::No;
        }
        let ends = matches!(
            action,
            Action::Disconnect
                | Action::Wrong
                | Action::Drain
                | Action::Destroy
                | Action::Kill
                | Action::Refused
        );
        if ends && row.reason.is_none() {
            row.reason = reason;
            let opening = matches!(from, State::Connecting | State::Handshaking);
            if opening
                && Nexus::shows_incompatible(reason)
                && let Some(reason) = reason
            {
                self.remember_incompatible(n, reason);
            }
        }
        if action == Action::Ignored {
            self.g.counters.ignored_inputs += 1;
        } else {
            self.trace
                .transition(0, n, from as u8, input as u8, next as u8);
        }
        self.nexus_action(n, from, action);
        action
    }

    fn nexus_action(&mut self, n: u32, from: State, action: Action) {
        match action {
            Action::Ignored | Action::Deliver | Action::Await => {}
            Action::Drop => self.trace.mark("frame after disconnect"),
            Action::Resolve => self.start(n, Due::Resolve),
            Action::Route => self.set_due(n, Due::Route),
            Action::Create if from == State::Vacant => self.start(n, Due::Create),
            Action::Create => self.set_due(n, Due::Create),
            Action::Prime => self.prime(n),
            Action::Connect => self.set_due(n, Due::Connect),
            Action::Accept => self.set_due(n, Due::Accept),
            Action::Handshake => {
                self.nexus(n).setup_due = true;
                self.mark_ready(n);
            }
            Action::Answer => self.answer_setup(n, from),
            Action::GoOnline => {
                self.forget_incompatible(n);
                self.disarm(Timer::Nexus(n));
                self.plan_receives(n);
                self.nexus_up(n);
                self.unused_if_empty(n);
            }
            Action::Establish => self.trace.mark("frame before established"),
            Action::Linger => {
                let linger = self.linger();
                self.arm_after(Timer::Nexus(n), linger);
            }
            Action::Unlinger => {
                self.disarm(Timer::Nexus(n));
                self.trace.mark("nexus reused while idle");
            }
            Action::Disconnect => self.go_down(n, Due::Disconnect),
            Action::Wrong => {
                self.g.counters.violations += 1;
                self.go_down(n, Due::Disconnect);
            }
            Action::Drain => self.drain(n, from),
            Action::Destroy | Action::Kill => {
                self.disarm(Timer::Nexus(n));
                self.set_due(n, Due::Destroy);
                self.lose_connections(n);
            }
            Action::Refused => {
                self.disarm(Timer::Nexus(n));
                self.set_due(n, Due::Reject);
                self.lose_connections(n);
            }
            Action::Free => self.free_nexus(n),
        }
    }

    fn start(&mut self, n: u32, due: Due) {
        self.set_due(n, due);
        let timeout = self.g.config.connect_timeout;
        self.arm_after(Timer::Nexus(n), timeout);
    }

    /// RDMA: one receive must be posted before connect or accept. Streams need none.
    fn prime(&mut self, n: u32) {
        if self.nexus(n).framing == Framing::Rdma {
            self.nexus(n).aim_receives(1);
            self.mark_ready(n);
        } else {
            self.nexus_input(n, Input::Primed, None);
        }
    }

    fn answer_setup(&mut self, n: u32, from: State) {
        if from == State::Accepting {
            self.trace.mark("frame before established");
        }
        self.nexus(n).setup_due = true;
        if self.nexus(n).refuse_status == 0 {
            self.disarm(Timer::Nexus(n));
            self.plan_receives(n);
            self.unused_if_empty(n);
        }
        self.mark_ready(n);
    }

    /// This side ends it: no frame is taken any more, connections hear of it now.
    fn go_down(&mut self, n: u32, due: Due) {
        self.set_due(n, due);
        let timeout = self.g.config.drain_timeout;
        self.arm_after(Timer::Nexus(n), timeout);
        self.lose_connections(n);
        self.drop_streams(n);
    }

    /// The transport is gone: what already arrived is still delivered, then connections hear of
    /// it. When this side ended it they know already.
    fn drain(&mut self, n: u32, from: State) {
        self.set_due(n, Due::Drain);
        let timeout = self.g.config.drain_timeout;
        self.arm_after(Timer::Nexus(n), timeout);
        if !matches!(from, State::Online | State::Idle) {
            self.lose_connections(n);
        }
    }

    /// When nothing of a draining nexus is out any more, it can be destroyed.
    pub(crate) fn check_drained(&mut self, n: u32) {
        let nexus = self.nexus(n);
        let empty = nexus.posted == 0 && nexus.sq_used == 0;
        if nexus.state == State::Draining && empty && nexus.due == Due::Nothing {
            self.nexus_input(n, Input::Drained, None);
        }
    }

    pub(crate) fn unused_if_empty(&mut self, n: u32) {
        if self.nexus(n).connection_count == 0 {
            self.nexus_input(n, Input::Unused, None);
        }
    }

    pub(crate) fn nexus_deadline(&mut self, n: u32) {
        let state = self.nexus(n).state;
        if state == State::Draining {
            self.trace.mark("drain timed out");
        }
        self.nexus_input(n, Input::Deadline, Some(Reason::TimedOut(Step::Connect)));
    }

    fn free_nexus(&mut self, n: u32) {
        self.lose_connections(n);
        self.flush_send_queue(n);
        if self.is_shared(n) {
            self.leave_receives(n);
        } else {
            self.flush_receives(n);
        }
        self.close_sockets(n);
        self.disarm(Timer::Nexus(n));
        self.end_held_tasks(n);
        self.unhash(n);
        self.forget(n);
        let nexus = self.nexus(n);
        debug_assert_eq!(nexus.connection_count, 0);
        let rdma = nexus.framing == Framing::Rdma;
        let receiving = self.g.receiving - u32::from(rdma);
        self.leave_ready(n);
        self.leave_sharers(n);
        let t = self.s.tables();
        self.g.set_receiving(receiving, t.nexuses.len());
        self.g.nexuses.give(t.nexuses, n);
        self.one_less();
    }

    fn flush_receives(&mut self, n: u32) {
        loop {
            let t = self.s.tables();
            let nexus = &mut t.nexuses[n as usize];
            if nexus.rq_head == NONE {
                break;
            }
            let slot = queue_pop!(t.slots, nexus.rq_head, nexus.rq_tail, next_free);
            nexus.posted -= 1;
            debug_assert!(t.slots[slot as usize].usage == SlotUse::Posted);
            let transport = nexus.transport;
            count(&mut nexus.traffic.flushed, 1);
            self.transport(transport).cq_used -= 1;
            self.g.counters.flushed += 1;
            self.free_slot(slot);
        }
    }

    fn flush_send_queue(&mut self, n: u32) {
        while self.nexus(n).sq_head != NONE {
            self.g.counters.flushed += 1;
            count(&mut self.nexus(n).traffic.flushed, 1);
            self.pop_work(n, WorkStatus::Flushed);
        }
    }

    fn unhash(&mut self, n: u32) {
        let t = self.s.tables();
        let home = bucket(&t.nexuses[n as usize].peer, t.nexuses.len());
        let next = t.nexuses[n as usize].hash_next;
        let mut at = t.nexuses[home].bucket;
        if at == n {
            t.nexuses[home].bucket = next;
            return;
        }
        while at != NONE {
            let follow = t.nexuses[at as usize].hash_next;
            if follow == n {
                t.nexuses[at as usize].hash_next = next;
                return;
            }
            at = follow;
        }
    }

    pub(crate) fn set_due(&mut self, n: u32, due: Due) {
        let t = self.s.tables();
        let nexus = &mut t.nexuses[n as usize];
        nexus.due = due;
        if !nexus.in_control {
            nexus.in_control = true;
            let q = &mut self.g.transport(nexus.transport).control;
            queue_push!(t.nexuses, q.head, q.tail, control_next, n);
        }
    }

    /// The next action for a driver, or `None` when there is nothing to do for now.
    #[must_use]
    pub fn poll_control(&mut self, transport: TransportId) -> Option<Control> {
        recorded!(self, PollControl { transport } => self.poll_control(transport));
        if let Some(control) = self.poll_listeners(transport) {
            return Some(control);
        }
        if let Some(control) = self.poll_regions(transport) {
            return Some(control);
        }
        if let Some(control) = self.poll_sockets(transport) {
            return Some(control);
        }
        loop {
            let t = self.s.tables();
            let q = &mut self.g.transports.get_mut(transport.0 as usize)?.control;
            if q.is_empty() {
                return None;
            }
            let n = queue_pop!(t.nexuses, q.head, q.tail, control_next);
            let nexus = &mut t.nexuses[n as usize];
            nexus.in_control = false;
            let due = core::mem::replace(&mut nexus.due, Due::Nothing);
            if let Some(control) = self.control(n, due) {
                return Some(control);
            }
        }
    }

    fn control(&mut self, n: u32, due: Due) -> Option<Control> {
        let nexus = self.nexus_id(n);
        let row = self.nexus(n);
        let (peer, local) = (row.peer, row.local);
        let reason = row.reason.unwrap_or(Reason::Refused);
        let mut params = ConnectParams {
            retry: 7,
            rnr_retry: 7,
            reads: u8::MAX,
            dual_stream: row.framing == Framing::TcpDual,
            private: PrivateData::EMPTY,
        };
        match due {
            Due::Connect => params.private = self.offer_private(n),
            Due::Accept => params.private = self.answer_private(n),
            _ => {}
        }
        let timeout_ms = millis(self.g.config.connect_timeout);
        Some(match due {
            Due::Nothing => return None,
            Due::Resolve => Control::ResolveAddress {
                nexus,
                peer,
                local,
                timeout_ms,
            },
            Due::Route => Control::ResolveRoute { nexus, timeout_ms },
            Due::Create => Control::CreateQueuePair { nexus },
            Due::Connect => Control::Connect { nexus, params },
            Due::Accept => Control::Accept { nexus, params },
            Due::Reject => {
                self.set_due(n, Due::Destroy);
                Control::Reject {
                    nexus,
                    reason,
                    private: PrivateData::refusal(reason),
                }
            }
            Due::Disconnect => Control::Disconnect { nexus },
            Due::Drain => {
                self.check_drained(n);
                Control::Drain { nexus }
            }
            Due::Destroy => Control::Destroy { nexus },
        })
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// A small mixing hash; only spreads, so its quality does not matter for safety: a peer cannot
/// choose the addresses that this side connects to, and half-open sockets are few.
pub(crate) fn bucket(peer: &SocketAddr, len: usize) -> usize {
    let mut h = u64::from(peer.port()) ^ 0x9e37_79b9_7f4a_7c15;
    let mut mix = |byte: u8| h = (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    match peer.ip() {
        core::net::IpAddr::V4(ip) => ip.octets().into_iter().for_each(&mut mix),
        core::net::IpAddr::V6(ip) => ip.octets().into_iter().for_each(&mut mix),
    }
    ((h ^ h >> 32) % len as u64) as usize
}
