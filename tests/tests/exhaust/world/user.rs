//! What users do, and what they hear.

use xio_proto::{
    CmKind, ConnectOptions, Data, Event, Message, RequestOptions, Segment, SessionOpen, SlotId,
    Slots as _,
};

use super::{AGAIN, Act, DEADLINE, Memory, Sent, Side, TRANSPORT, Told, User, World, address};

impl World {
    pub(super) fn act(&mut self, i: usize, act: Act) {
        let now = self.now;
        let side = &mut self.sides[i];
        match act {
            Act::Connect => {
                let user = 1 + side.user.at as u64;
                let setup = SessionOpen {
                    uri: "rdma://x",
                    private: b"",
                };
                let options = ConnectOptions {
                    reconnect: self.again.then_some(AGAIN),
                    ..ConnectOptions::new(user)
                };
                let connection = side
                    .core
                    .connect(
                        now,
                        TRANSPORT,
                        address(1 - i),
                        &setup,
                        &options,
                        &mut side.memory,
                    )
                    .expect("there is room");
                side.user.open.insert(user, connection);
            }
            Act::Call => self.call(i),
            Act::Request | Act::Hurry | Act::OneWay => self.send(i, act),
            Act::Cancel(number) => {
                let sent = &side.user.sent[&number];
                if let (false, Some(task)) = (sent.outcome, sent.task) {
                    // One whose answer is here and not heard cannot be: all is heard at once.
                    side.core.cancel(task).expect("it has no outcome");
                }
            }
            Act::Answer => {
                side.user.keeps = false;
                for task in std::mem::take(&mut side.user.kept) {
                    // The peer may be closing: nobody waits for it then.
                    let answered = side.core.respond(task, &Message::default());
                    answered
                        .or_else(|_| side.core.release(task))
                        .expect("it is the user's");
                }
            }
            Act::Close => {
                if let Some(connection) = side.user.connection {
                    // It may be closing because the peer does.
                    let _ = side.core.close(now, connection);
                }
            }
            Act::Restart => self.restart(i),
            Act::Lose => self.lose(i),
        }
    }

    fn lose(&mut self, i: usize) {
        for p in 0..self.sides[i].pairs.len() {
            let pair = &self.sides[i].pairs[p];
            if let (true, Some(peer)) = (pair.connected, pair.peer) {
                self.lost(1 - i, peer, true);
                self.lost(i, p, true);
            }
        }
        self.settle(1 - i);
    }

    fn send(&mut self, i: usize, act: Act) {
        let now = self.now;
        let side = &mut self.sides[i];
        let Some(connection) = side.user.connection else {
            return;
        };
        let number = side.user.next + 1;
        let data = [Segment {
            addr: number << 8,
            len: 8,
            lkey: 1,
            rkey: 2,
        }];
        let message = Message {
            data: &data,
            user: number,
            ..Message::default()
        };
        let deadline = (act == Act::Hurry).then(|| now.after(DEADLINE));
        let options = RequestOptions {
            deadline,
            ..RequestOptions::default()
        };
        let taken = if act == Act::OneWay {
            side.core.send_one_way(connection, &message, &options)
        } else {
            side.core.send(connection, &message, &options)
        };
        // A connection that is closing takes none; a full one neither.
        if let Ok(task) = taken {
            side.user.next = number;
            let task = Some(task);
            side.user.sent.insert(
                number,
                Sent {
                    task,
                    deadline,
                    ..Sent::default()
                },
            );
        }
    }

    fn restart(&mut self, i: usize) {
        let user = self.sides[i].user.at;
        let mut side = Side::new(&self.config, i as u8);
        side.user.at = user;
        side.user.next = 100;
        let old = std::mem::replace(&mut self.sides[i], side);
        for pair in &old.pairs {
            match pair.peer {
                Some(peer) if pair.connected => self.lost(1 - i, peer, true),
                Some(peer) => self.refuse(1 - i, peer),
                None => {}
            }
        }
        for told in old.told {
            if let Told::Asked { from, .. } = told {
                self.refuse(1 - i, from);
            }
        }
        self.settle(i);
    }

    /// Whom a queue pair asked is gone.
    fn refuse(&mut self, j: usize, p: usize) {
        self.sides[j].pairs[p].peer = None;
        self.sides[j]
            .told
            .push_back(Told::Kind(p, CmKind::Unreachable));
    }

    /// The other end of a queue pair is gone.
    pub(super) fn lost(&mut self, j: usize, peer: usize, flushes: bool) {
        let other = &mut self.sides[j].pairs[peer];
        other.peer = None;
        if std::mem::take(&mut other.connected) {
            self.sides[j]
                .told
                .push_back(Told::Kind(peer, CmKind::Disconnected));
            if flushes {
                self.sides[j].flush(peer);
            }
        }
    }

    pub(super) fn hear(&mut self, i: usize, event: Event) {
        let side = &mut self.sides[i];
        let user = &mut side.user;
        match event {
            Event::SessionRequest { session, .. } => {
                user.accepted += 1;
                let number = 1000 + user.accepted;
                let accepted =
                    side.core
                        .accept(self.now, session, number, &[], b"", &mut side.memory);
                // Its client may be gone.
                if let Ok(connection) = accepted {
                    user.open.insert(number, connection);
                }
            }
            Event::Established {
                connection,
                user: number,
                message,
                ..
            } => {
                assert!(user.up.insert(number), "established twice");
                user.connection = Some(connection);
                if let Some(message) = message {
                    side.core.release(message).expect("it is the user's");
                }
            }
            Event::ConnectFailed {
                user: number,
                message,
                ..
            } => {
                assert!(
                    user.failed.insert(number),
                    "connection {number} failed twice"
                );
                if let Some(message) = message {
                    side.core.release(message).expect("it is the user's");
                }
            }
            Event::Closed {
                user: number,
                reason,
                ..
            } => {
                let was = user.open.remove(&number);
                assert!(
                    was.is_some(),
                    "connection {number} closed twice: {reason:?}"
                );
                user.up.remove(&number);
                user.failed.remove(&number);
                user.connection = user.open.values().next().copied();
                for task in std::mem::take(&mut user.kept) {
                    side.core.release(task).expect("it is the user's");
                }
            }
            other => self.hear_message(i, &other),
        }
    }

    fn hear_message(&mut self, i: usize, event: &Event) {
        let side = &mut self.sides[i];
        let user = &mut side.user;
        match *event {
            Event::Request { task, data, .. } => {
                came(user, &side.memory, data);
                if user.keeps {
                    user.kept.push(task);
                } else {
                    // Its connection may be closing; then it is counted as unanswered.
                    if side.core.respond(task, &Message::default()).is_err() {
                        side.core.release(task).expect("it is the user's");
                    }
                }
            }
            Event::OneWay { task, data, .. } => {
                came(user, &side.memory, data);
                side.core.release(task).expect("it is the user's");
            }
            Event::Response {
                task,
                user: number,
                buffers_returned,
                ..
            } => {
                self.outcome(i, number, buffers_returned);
                self.sides[i].core.release(task).expect("it is the user's");
            }
            // An answer's own end, which has no number.
            Event::Sent { user: 0, .. } | Event::Failed { user: 0, .. } => {}
            Event::Sent {
                user: number,
                buffers_returned,
                ..
            }
            | Event::Failed {
                user: number,
                buffers_returned,
                ..
            }
            | Event::TimedOut {
                user: number,
                buffers_returned,
                ..
            }
            | Event::Cancelled {
                user: number,
                buffers_returned,
                ..
            } => {
                self.outcome(i, number, buffers_returned);
            }
            Event::BuffersReturned { user: number, .. } => self.returned(i, number),
            _ => {}
        }
    }

    fn outcome(&mut self, i: usize, number: u64, returned: bool) {
        let sent = self.sides[i]
            .user
            .sent
            .get_mut(&number)
            .expect("it was taken");
        assert!(!sent.outcome, "two outcomes of message {number}");
        sent.outcome = true;
        if returned {
            self.returned(i, number);
        }
    }

    fn returned(&mut self, i: usize, number: u64) {
        let side = &mut self.sides[i];
        let posted = side.pairs.iter().flat_map(|pair| &pair.sends);
        let has = posted.filter(|posted| posted.of.contains(&number)).count();
        assert_eq!(
            has, 0,
            "memory of message {number} is back, and the device has it"
        );
        let sent = side.user.sent.get_mut(&number).expect("it was taken");
        assert!(!sent.returned, "memory of message {number} came back twice");
        sent.returned = true;
    }
}

fn came(user: &mut User, memory: &Memory, data: Data) {
    let Data::Slot(span) = data else {
        panic!("small data comes in its slot");
    };
    let bytes = span.of(memory.slot(SlotId(span.slot)));
    let number = u64::from_be_bytes(bytes.try_into().expect("all of it"));
    assert!(user.came.insert(number), "message {number} came twice");
}
