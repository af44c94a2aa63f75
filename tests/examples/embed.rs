//! Two endpoints in one program: connect, one request, one response, close. The queue pair
//! between them is a list of receives on each side; everything a driver has to do is here.

use std::{collections::VecDeque, error::Error, net::SocketAddr};

use xio_proto::{storage::ArrayStorage, wire::Framing, *};

/// All that an endpoint may hold: 1 listener and 1 transport connection, 2 sessions and
/// connections, 8 messages and 32 receive slots, 48 slots in all, 64 work requests; their timers.
type Tables = ArrayStorage<1, 1, 2, 2, 40, 48, 64, 0, 0, 0, 47>;

/// The message slots: memory of the driver's, registered with its device.
struct Pool(Vec<[u8; 10_240]>);

impl Slots for Pool {
    fn slot(&self, slot: SlotId) -> &[u8] {
        &self.0[slot.0 as usize]
    }
    fn slot_mut(&mut self, slot: SlotId) -> &mut [u8] {
        &mut self.0[slot.0 as usize]
    }
}

struct Side {
    core: Endpoint<Tables>,
    rdma: TransportId,
    slots: Pool,
    nexus: Option<NexusId>,
    connection: Option<ConnectionId>,
    receives: VecDeque<(WrId, SlotId)>,
    now: Instant,
}

impl Side {
    fn new(number: u8) -> Result<Self, ConfigError> {
        let mut core = Endpoint::new(Config::new(number, 32, 16), Tables::new())?;
        Ok(Self {
            rdma: core.add_transport(TransportLimits::rdma())?,
            core,
            slots: Pool(vec![[0; 10_240]; 48]),
            nexus: None,
            connection: None,
            receives: VecDeque::new(),
            now: Instant::from_millis(1),
        })
    }
    fn bytes(&self, span: Span) -> &[u8] {
        span.of(self.slots.slot(SlotId(span.slot)))
    }
    /// A message of text, which lies in a slot behind the room for the frame's headers.
    fn message(&mut self, text: &[u8]) -> Result<Message<'static>, CommandError> {
        let connection = self.connection.expect("known before");
        let slot = self.core.reserve_slot(connection)?;
        let at = self.core.config().headroom();
        self.slots.slot_mut(slot)[at..at + text.len()].copy_from_slice(text);
        let mut message = Message::default();
        (message.slot, message.slot_data) = (Some(slot), text.len() as u32);
        Ok(message)
    }
    fn cm(&mut self, kind: CmKind) {
        let nexus = self.nexus.expect("known before");
        self.core.handle_cm(self.now, nexus, CmEvent::plain(kind));
    }
    fn complete(&mut self, wr: WrId, len: usize) {
        let (status, len) = (WorkStatus::Success, len as u32);
        let done = Completion { wr, status, len };
        self.core.handle_completion(self.now, done, &mut self.slots);
    }
}

/// Carries out what an endpoint wants of its communication manager.
fn control(me: &mut Side, peer: &mut Side, listener: ListenerId, wanted: Control) {
    match wanted {
        Control::ResolveAddress { nexus, .. } => {
            me.nexus = Some(nexus);
            me.cm(CmKind::AddrResolved);
        }
        Control::ResolveRoute { .. } => me.cm(CmKind::RouteResolved),
        Control::CreateQueuePair { nexus } => me.core.handle_queue_pair(me.now, nexus, Ok(())),
        Control::Connect { .. } => {
            let request = ConnectRequest {
                listener,
                peer: SocketAddr::from(([10, 0, 0, 1], 1)),
                local: None,
                framing: Framing::Rdma,
                private: &[],
            };
            let (now, core) = (peer.now, &mut peer.core);
            peer.nexus = core.handle_connect_request(now, peer.rdma, &request).ok();
        }
        Control::Accept { .. } => {
            me.cm(CmKind::Established);
            peer.cm(CmKind::Established);
        }
        _ => {}
    }
}

/// Posts a work request; here that carries the frame over at once and completes it.
fn work(me: &mut Side, peer: &mut Side, wanted: Work) {
    match wanted {
        Work::Recv { wr, slot, .. } => me.receives.push_back((wr, slot)),
        Work::Send { wr, head, tail, .. } => {
            let frame = [me.bytes(head), me.bytes(tail)].concat();
            let (receive, slot) = peer.receives.pop_front().expect("credits keep one posted");
            peer.slots.slot_mut(slot)[..frame.len()].copy_from_slice(&frame);
            peer.complete(receive, frame.len());
            me.complete(wr, 0);
        }
        Work::Read { .. } | Work::Write { .. } => unreachable!("no message is that large"),
    }
}

/// The application. False when the event was the last of its connection.
fn react(me: &mut Side, event: Event) -> Result<bool, CommandError> {
    match event {
        Event::SessionRequest { session, .. } => {
            let (now, slots) = (me.now, &mut me.slots);
            me.connection = Some(me.core.accept(now, session, 2, &[], b"", slots)?);
        }
        Event::Established { user: 1, .. } => {
            let (message, options) = (me.message(b"hello")?, RequestOptions::default());
            me.core
                .send(me.connection.expect("ours"), &message, &options)?;
        }
        Event::Request { task, data, .. } => {
            let Data::Slot(data) = data else {
                unreachable!()
            };
            let answer = me.bytes(data).to_ascii_uppercase();
            let message = me.message(&answer)?;
            me.core.respond(task, &message)?;
        }
        Event::Response { task, data, .. } => {
            let Data::Slot(data) = data else {
                unreachable!()
            };
            println!("the answer is {}", String::from_utf8_lossy(me.bytes(data)));
            me.core.release(task)?;
            me.core.close(me.now, me.connection.expect("ours"))?;
        }
        Event::Closed { user, reason, .. } => {
            println!("connection {user}: {reason}");
            return Ok(false);
        }
        _ => {}
    }
    Ok(true)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut me, mut peer) = (Side::new(0)?, Side::new(1)?);
    let (at, rdma) = (SocketAddr::from(([10, 0, 0, 2], 7000)), me.rdma);
    let (user, backlog) = (0, 1);
    let listener = peer
        .core
        .listen(rdma, at, &ListenOptions { user, backlog })?;
    let (uri, private) = ("rdma://10.0.0.2:7000/upper", &b""[..]);
    let (open, options) = (SessionOpen { uri, private }, ConnectOptions::new(1));
    let (now, slots) = (me.now, &mut me.slots);
    me.connection = Some(me.core.connect(now, rdma, at, &open, &options, slots)?);
    let (mut alive, mut quiet) = (2, 0);
    while alive > 0 {
        // After any input or command: everything that is wanted, until nothing is.
        quiet += 1;
        while let Some(wanted) = me.core.poll_control(rdma) {
            control(&mut me, &mut peer, listener, wanted);
            quiet = 0;
        }
        while let Some(wanted) = me.core.poll_work(rdma, &mut me.slots) {
            work(&mut me, &mut peer, wanted);
            quiet = 0;
        }
        while let Some(event) = me.core.poll_event() {
            alive -= i32::from(!react(&mut me, event)?);
            quiet = 0;
        }
        if quiet > 2 {
            // A driver sleeps here, until its device or this deadline wakes it.
            me.now = me.core.poll_timeout().unwrap_or(me.now);
            me.core.handle_timeout(me.now);
        }
        std::mem::swap(&mut me, &mut peer);
    }
    Ok(())
}
