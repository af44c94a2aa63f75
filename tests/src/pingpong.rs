//! Ping-pong in three verbs: post a send, post a receive, poll for completions.
//!
//! [`ping_pong`] is the program. It runs over everything that has the three verbs: over each
//! driver through [`Verbs`], with only the constructor changed, and over plain sockets through
//! [`Plain`], its twin, whose output is the same.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use xio_proto::driver::Driver;
use xio_proto::{
    ConnectOptions, ConnectionId, Event, ListenOptions, Message, RequestOptions, SessionOpen,
};

/// What a poll found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A send is complete.
    Sent(u64),
    /// A message came for a receive.
    Received(u64, Vec<u8>),
}

/// The three verbs. Messages keep their boundaries; completions of each kind come in order.
pub trait ThreeVerbs {
    /// Sends a message; `Sent` follows.
    fn post_send(&mut self, id: u64, message: &[u8]);
    /// Is ready for one more message; `Received` follows.
    fn post_recv(&mut self, id: u64);
    /// The next completion, if there is one.
    fn poll(&mut self) -> Option<Done>;
}

/// The three verbs over an endpoint: each message is a one-way message.
pub struct Verbs<D: Driver> {
    driver: D,
    connection: Option<ConnectionId>,
    receives: VecDeque<u64>,
    arrived: VecDeque<Vec<u8>>,
    sent: VecDeque<u64>,
}

impl<D: Driver> Verbs<D> {
    /// Two connected ends: who listens at `address`, and who connects to it.
    ///
    /// # Panics
    /// When they do not come together.
    pub fn connected(mut server: D, mut client: D, address: SocketAddr, dual: bool) -> [Self; 2] {
        let options = ListenOptions {
            user: 0,
            backlog: 1,
        };
        let listener = server.listen(address, &options).expect("room");
        let at = server.listening(listener).expect("an address that is free");
        let uri = format!("tcp://{at}/");
        let open = SessionOpen {
            uri: &uri,
            private: b"",
        };
        let options = ConnectOptions {
            dual_stream: dual,
            ..ConnectOptions::new(1)
        };
        client.connect(at, &open, &options).expect("room");
        let mut ends = [server, client].map(|driver| Self {
            driver,
            connection: None,
            receives: VecDeque::new(),
            arrived: VecDeque::new(),
            sent: VecDeque::new(),
        });
        while ends.iter().any(|end| end.connection.is_none()) {
            for end in &mut ends {
                assert_eq!(end.poll(), None, "nothing was posted");
            }
        }
        ends
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::SessionRequest { session, .. } => {
                self.driver.accept(session, 1, &[], b"").expect("accepts");
            }
            Event::Established { connection, .. } => self.connection = Some(connection),
            Event::OneWay { task, data, .. } => {
                let mut message = Vec::new();
                self.driver
                    .with_data(data, |piece| message.extend_from_slice(piece));
                self.driver.release(task).expect("ours");
                self.arrived.push_back(message);
            }
            Event::Sent { user, .. } => self.sent.push_back(user),
            other => panic!("{other:?}"),
        }
    }
}

impl<D: Driver> ThreeVerbs for Verbs<D> {
    fn post_send(&mut self, id: u64, message: &[u8]) {
        let connection = self.connection.expect("connected");
        let slot = self.driver.reserve_slot(connection).expect("a slot");
        self.driver
            .with_slot(slot, |room| room[..message.len()].copy_from_slice(message))
            .expect("reserved");
        let message = Message {
            slot: Some(slot),
            slot_data: message.len() as u32,
            user: id,
            ..Message::default()
        };
        let options = RequestOptions::default();
        self.driver
            .send_one_way(connection, &message, &options)
            .expect("room");
    }

    fn post_recv(&mut self, id: u64) {
        self.receives.push_back(id);
    }

    fn poll(&mut self) -> Option<Done> {
        self.driver.poll(Some(Duration::ZERO)).expect("polls");
        while let Some(event) = self.driver.next_event() {
            self.event(event);
        }
        if let Some(id) = self.sent.pop_front() {
            return Some(Done::Sent(id));
        }
        if self.receives.is_empty() {
            return None;
        }
        let message = self.arrived.pop_front()?;
        Some(Done::Received(self.receives.pop_front()?, message))
    }
}

/// The three verbs over a plain socket: each message behind its length.
pub struct Plain {
    stream: TcpStream,
    receives: VecDeque<u64>,
    sent: VecDeque<u64>,
    output: VecDeque<(u64, Vec<u8>)>,
    input: Vec<u8>,
}

impl Plain {
    /// Two connected ends on loopback.
    ///
    /// # Errors
    /// What the system says.
    pub fn connected() -> io::Result<[Self; 2]> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let client = TcpStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        let end = |stream: TcpStream| -> io::Result<Self> {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(Self {
                stream,
                receives: VecDeque::new(),
                sent: VecDeque::new(),
                output: VecDeque::new(),
                input: Vec::new(),
            })
        };
        Ok([end(server)?, end(client)?])
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some((id, bytes)) = self.output.front_mut() {
            let taken = self.stream.write(bytes)?;
            bytes.drain(..taken);
            if bytes.is_empty() {
                self.sent.push_back(*id);
                self.output.pop_front();
            }
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        let mut room = [0; 4096];
        let came = self.stream.read(&mut room)?;
        self.input.extend_from_slice(&room[..came]);
        Ok(())
    }
}

impl ThreeVerbs for Plain {
    fn post_send(&mut self, id: u64, message: &[u8]) {
        let len = (message.len() as u32).to_be_bytes();
        self.output.push_back((id, [&len[..], message].concat()));
    }

    fn post_recv(&mut self, id: u64) {
        self.receives.push_back(id);
    }

    fn poll(&mut self) -> Option<Done> {
        for result in [self.write(), self.read()] {
            match result {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => panic!("{e}"),
                _ => {}
            }
        }
        if let Some(id) = self.sent.pop_front() {
            return Some(Done::Sent(id));
        }
        let len = self.input.first_chunk::<4>()?;
        let end = 4 + u32::from_be_bytes(*len) as usize;
        if self.receives.is_empty() || self.input.len() < end {
            return None;
        }
        let message = self.input[4..end].to_vec();
        self.input.drain(..end);
        Some(Done::Received(self.receives.pop_front()?, message))
    }
}

/// What the program tells over these ends, without what may differ: completions of sends and
/// receives come in either order, and the last one of the other end's sends is not waited for.
pub fn told(mut ends: [impl ThreeVerbs; 2], rounds: u64) -> Vec<String> {
    let told = ping_pong(&mut ends, rounds);
    let last = format!("pong sent {}", rounds - 1);
    let lines = told.lines().filter(|line| *line != last);
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The program: one end serves, the other hits so many balls of growing size, and each tells what
/// it sees. The same lines over every wire.
pub fn ping_pong<E: ThreeVerbs>([pong, ping]: &mut [E; 2], rounds: u64) -> String {
    let mut told = String::new();
    let ball = |round: u64| vec![round as u8; (round * round % 3000) as usize];
    let mut line = |who: &str, done: &Done| {
        let _ = match done {
            Done::Sent(id) => writeln!(told, "{who} sent {id}"),
            Done::Received(id, ball) => writeln!(told, "{who} received {id}: {}", ball.len()),
        };
    };
    for round in 0..rounds {
        ping.post_recv(round);
        pong.post_recv(round);
        ping.post_send(round, &ball(round));
        let (mut sent, mut back) = (false, None);
        while !sent || back.is_none() {
            match ping.poll() {
                Some(Done::Sent(id)) => {
                    assert_eq!(id, round);
                    sent = true;
                }
                Some(done) => back = Some(done),
                None => {}
            }
            if let Some(done) = pong.poll() {
                line("pong", &done);
                if let Done::Received(id, ball) = done {
                    pong.post_send(id, &ball);
                }
            }
        }
        let back = back.expect("the loop's condition");
        line("ping", &back);
        assert_eq!(back, Done::Received(round, ball(round)));
        // The other end's own send may complete after its ball is here.
        while let Some(done) = pong.poll() {
            line("pong", &done);
        }
    }
    told
}
