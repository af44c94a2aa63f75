//! What users call, and what devices report that is wrong, late, or about something else.

use core::time::Duration;

use xio_proto::{
    Access, CmEvent, CmKind, ConnectOptions, ConnectionId, Input, Instant, ListenOptions,
    ListenerId, Message, NexusId, Reason, Reconnect, RegionId, RemoteMemory, RequestOptions,
    Segment, SessionId, SessionOpen, SlotId, TaskId, WorkStatus, WrId,
};
use xio_tests::hostile::Choices;

use super::{Known, TRANSPORT, World, address};

/// What a command is about.
struct Ids {
    now: Instant,
    connection: ConnectionId,
    task: TaskId,
    session: SessionId,
    user: u64,
    deadline: Option<Instant>,
}

impl Ids {
    /// Ids that were given once, or never.
    fn some(now: Instant, known: &Known, choices: &mut Choices<'_>) -> Self {
        let connection = choices.pick(&known.connections);
        let task = choices.pick(&known.tasks);
        let session = choices.pick(&known.sessions);
        let other = choices.below(40) as u32;
        let soon = now.after(Duration::from_millis(choices.below(9) as u64));
        Self {
            now,
            connection: connection.unwrap_or_else(|| ConnectionId::new(other % 5, 0)),
            task: task.unwrap_or_else(|| TaskId::new(other, 0)),
            session: session.unwrap_or_else(|| SessionId::new(other % 5, 0)),
            user: choices.byte().into(),
            deadline: (choices.below(3) == 0).then_some(soon),
        }
    }
}

/// A message, most often a good one.
fn message<'a>(known: &Known, data: &'a [Segment], choices: &mut Choices<'_>) -> Message<'a> {
    let slot = (choices.below(2) == 0).then(|| choices.pick(&known.slots));
    let slot = slot.flatten();
    let is_bare = slot.is_none() && choices.below(16) > 0;
    let lengths = [choices.below(256), choices.below(40)];
    let [header, inline] = if is_bare { [0, 0] } else { lengths };
    Message {
        slot,
        header_len: header as u16,
        slot_data: inline as u32,
        data,
        user: 3,
        prompt: choices.below(8) == 0,
    }
}

/// A direct READ or WRITE.
fn direct<'a>(
    is_read: bool,
    ids: &Ids,
    local: &'a [Segment],
    choices: &mut Choices<'_>,
) -> Input<'a> {
    let remote = RemoteMemory {
        addr: choices.word().into(),
        len: choices.word().into(),
        key: 2,
    };
    let Ids {
        connection,
        user,
        deadline,
        ..
    } = *ids;
    if is_read {
        Input::Read {
            connection,
            local,
            remote,
            user,
            deadline,
        }
    } else {
        Input::Write {
            connection,
            local,
            remote,
            user,
            deadline,
        }
    }
}

impl World {
    /// A user's command.
    pub(super) fn user(&mut self, i: usize, choices: &mut Choices<'_>) {
        let side = &mut self.sides[i];
        let ids = Ids::some(self.now, &side.known, choices);
        let segments = [
            segment(0x1000, 1 << choices.below(12)),
            segment(0x9000, choices.below(300) as u32),
            segment(0xa000, 40),
            segment(0xb000, 1 << choices.below(24)),
            segment(0xc000, 7),
        ];
        let count = choices.below(12);
        let some = &segments[..if count > 5 { count % 3 } else { count }];
        let options = RequestOptions {
            into: &segments[..choices.below(4)],
            receipt: choices.below(3) == 0,
            force_read: choices.below(8) == 0,
            force_write: choices.below(8) == 0,
            deadline: ids.deadline,
            last_in_batch: false,
            idempotent: choices.below(4) == 0,
        };
        let message = message(&side.known, some, choices);
        let input = match choices.below(26) {
            0..=3 => Input::Send {
                connection: ids.connection,
                message,
                options,
            },
            4 | 5 => Input::SendOneWay {
                connection: ids.connection,
                message,
                options,
            },
            6..=8 => Input::Respond {
                request: ids.task,
                message,
            },
            9 => Input::Provide {
                task: ids.task,
                segments: some,
            },
            which @ (10 | 11) => direct(which == 10, &ids, some, choices),
            other => rare(other, &ids, i, &side.known, choices),
        };
        side.apply(&input);
    }

    /// A report of a device that may be wrong, late, or about something else.
    pub(super) fn device(&mut self, i: usize, choices: &mut Choices<'_>) {
        let now = match choices.below(4) {
            0 => Instant::ZERO,
            _ => self.now,
        };
        let known = &self.sides[i].known;
        let nexus = choices.pick(&known.nexuses);
        let nexus = nexus.unwrap_or_else(|| NexusId::new(choices.below(4) as u32, 0));
        let listener = choices.pick(&known.listeners);
        let listener = listener.unwrap_or_else(|| ListenerId::new(0, 9));
        let region = choices.pick(&known.regions);
        let region = region.unwrap_or_else(|| RegionId::new(0, 9));
        let wr = match choices.below(4) {
            0 => WrId::from_bits(u64::from(choices.word()) << 32 | u64::from(choices.word())),
            _ => choices
                .pick(&known.works)
                .unwrap_or_else(|| WrId::from_bits(0)),
        };
        let status = match choices.below(4) {
            0 => WorkStatus::Success,
            1 => WorkStatus::RemoteAccess,
            2 => WorkStatus::Flushed,
            _ => WorkStatus::Other(7),
        };
        let event = CmEvent::failed(
            CmKind::from_number(choices.below(18) as u32),
            [0, -5][choices.below(2)],
        );
        let error = 12;
        let input = match choices.below(10) {
            0..=2 => Input::Cm { now, nexus, event },
            3 => Input::QueuePair {
                now,
                nexus,
                made: Err(error),
            },
            4 => Input::PostFailed { now, wr, error },
            5 => Input::DriverFailed {
                now,
                nexus,
                reason: Reason::DriverFailed(error),
            },
            6 => Input::ListenFailed {
                now,
                listener,
                error,
            },
            7 => Input::Region {
                now,
                region,
                keys: Err(error),
            },
            8 => Input::RegionRevoked { now, region },
            _ => {
                self.lie(i, wr, status);
                return;
            }
        };
        self.sides[i].apply(&input);
    }

    /// A completion that nobody expects: of something posted it comes too early, and ends it.
    fn lie(&mut self, i: usize, wr: WrId, status: WorkStatus) {
        let posted = self.sides[i].pairs.iter_mut().any(|pair| {
            let before = pair.receives.len();
            pair.receives.retain(|(posted, _)| *posted != wr);
            let is_receive = pair.receives.len() < before;
            let send = pair.sends.iter().position(|(posted, _)| *posted == wr);
            pair.sends.drain(..send.map_or(0, |at| at + 1));
            is_receive || send.is_some()
        });
        // What a device says was received and was not is old memory; it is no frame.
        let status = match status {
            WorkStatus::Success if posted => WorkStatus::Flushed,
            other => other,
        };
        self.complete(i, wr, status, &[]);
    }
}

fn segment(addr: u64, len: u32) -> Segment {
    Segment {
        addr,
        len,
        lkey: 1,
        rkey: 2,
    }
}

/// Commands that are given now and then.
fn rare(
    which: usize,
    ids: &Ids,
    i: usize,
    known: &Known,
    choices: &mut Choices<'_>,
) -> Input<'static> {
    const PORTALS: &[&[u8]] = &[b"rdma://10.0.0.2:7000"];
    let Ids {
        now,
        connection,
        session,
        user,
        ..
    } = *ids;
    let again = (user & 2 == 0).then_some(Reconnect {
        attempts_max: 3,
        ..Reconnect::DEFAULT
    });
    let options = ConnectOptions {
        own_nexus: user & 1 == 0,
        reconnect: again,
        ..ConnectOptions::new(user)
    };
    let portals = &PORTALS[..choices.below(5) / 4];
    let (transport, private) = (TRANSPORT, b"private".as_slice());
    match which {
        12 | 13 => Input::Connect {
            now,
            transport,
            peer: address(1 - i),
            setup: SessionOpen {
                uri: "rdma://10.0.0.2:7000/x",
                private: &private[..choices.below(8)],
            },
            options,
        },
        14 if known.listeners.len() < 2 => Input::Listen {
            transport,
            address: address(i),
            options: ListenOptions { user, backlog: 4 },
        },
        14..=16 => Input::Accept {
            now,
            session,
            user,
            portals,
            private,
        },
        17 => match choices.below(4) {
            0 => Input::Reject {
                now,
                session,
                reason: 5,
                private,
            },
            1 => Input::Redirect {
                now,
                session,
                portals: PORTALS,
            },
            _ => Input::Close { now, connection },
        },
        25 => ticket(ids, known, i, choices),
        _ => small(which, ids, known, choices),
    }
}

/// Commands about one thing that exists or does not.
fn small(which: usize, ids: &Ids, known: &Known, choices: &mut Choices<'_>) -> Input<'static> {
    let Ids {
        now,
        connection,
        task,
        user,
        ..
    } = *ids;
    let transport = TRANSPORT;
    match which {
        18 => Input::ReserveSlot { connection },
        19 => Input::ReserveAnswerSlot { request: task },
        20 | 21 => Input::Release { task },
        22 if choices.below(40) == 0 => Input::Stop {
            now,
            bound: Duration::from_millis(choices.below(500) as u64),
        },
        22 => match choices.below(5) {
            0 => Input::Abort { now, connection },
            1 => Input::ReturnSlot {
                slot: choices.pick(&known.slots).unwrap_or(SlotId(99)),
            },
            2 => Input::Register {
                transport,
                addr: 0x1000,
                len: 64,
                access: Access::all(),
                user,
            },
            3 => Input::Revoke {
                region: choices
                    .pick(&known.regions)
                    .unwrap_or_else(|| RegionId::new(0, 9)),
            },
            _ => Input::Refuse { task, status: 7 },
        },
        23 => Input::Cancel { task },
        _ => Input::SetReceipt { task, code: 1 },
    }
}

/// Sessions that travel as tickets.
fn ticket(ids: &Ids, known: &Known, i: usize, choices: &mut Choices<'_>) -> Input<'static> {
    let Ids {
        now, session, user, ..
    } = *ids;
    match choices.pick(&known.tickets) {
        Some(ticket) if choices.below(2) == 0 => Input::ImportSession { now, ticket, user },
        _ if choices.below(2) == 0 => Input::ExportSession {
            session,
            joins: 2,
            expires: now.after(Duration::from_secs(1)),
        },
        _ => Input::Join {
            now,
            session,
            transport: TRANSPORT,
            portal: address(1 - i),
            options: ConnectOptions::new(user),
        },
    }
}
